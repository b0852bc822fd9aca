"""A script: ``python nightly.py``. It runs its own worker, and waits for one job."""

from stock import app, close_day, reports

from penstock import Success


def main() -> None:
    with app.sync.open(services="all") as backend:
        work = backend.run_mutation(close_day, "pen", 3)
        match reports.result(backend, work):
            case Success(text):
                print(text)
            case other:
                raise SystemExit(f"The report is {other}.")


if __name__ == "__main__":
    main()
