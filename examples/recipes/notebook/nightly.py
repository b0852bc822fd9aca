"""A script: ``python nightly.py``. It runs its own worker, and waits for one job."""

from stock import add, app, report, reports

from penstock import Success


def main() -> None:
    with app.sync.open(services=["worker"]) as backend:
        backend.run_mutation(add, "pen", 3)
        match reports.result(backend, reports.enqueue(backend, report)):
            case Success(text):
                print(text)
            case other:
                raise SystemExit(f"The report is {other}.")


if __name__ == "__main__":
    main()
