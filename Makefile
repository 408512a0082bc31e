# One command per job. A fresh machine needs Rust (cargo, clippy, rustfmt), Python 3.10+ with venv (3.11+ for `make test`), and a C compiler.
# The rest comes by itself: Python tools into .venv, cmake and nasm for libjpeg-turbo where they can be had.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# The extension never links libpython: the interpreter that imports it provides the symbols.
export PYO3_BUILD_EXTENSION_MODULE := 1
export PYO3_PYTHON := $(CURDIR)/$(PY)
export PYTHONPATH := $(CURDIR)/python
# Images of containers set it. Hundreds of processes of the tests would each compile what they import: 4 s for PyTorch alone.
unexport PYTHONDONTWRITEBYTECODE

comma := ,
# Programs of other projects that some benches need, in its bin/.
SERVERS ?= .servers
# `turbo` where libjpeg-turbo can be built, else empty. Expanded in recipes, after the file was made.
TURBO = $(shell cat $(VENV)/turbo)
FEATURES = --features bowstring/fuse$(if $(TURBO),$(comma)bowstring/turbo)
# All members with all their targets in one selection: cargo then resolves one set of features, and tests, binary and
# Python extension share one build of every dependency.
WORLD = --locked --workspace $(FEATURES)
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)
# Clippy's driver compiles our own crates in the dev profile: what is built is linted, and nothing is checked a second time for it. Cargo must
# see its arguments: it compiles anew what was compiled with others.
LINTED = RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/lint-rustc.sh CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- what the machine lacks -------------------------------------------------------------------------------------------

$(VENV)/made:
	@command -v cargo >/dev/null || { echo "bowstring needs Rust: https://rustup.rs" >&2; exit 1; }
	@python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "bowstring needs python3 >= 3.10 with the venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	python3 -m venv $(VENV)
	@touch $@

# What a wheel needs, what the demo does, and what everything else does.
$(VENV)/wheel: python/requirements-wheel.txt $(VENV)/made
	$(VENV)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/demo: python/requirements-demo.txt $(VENV)/made
	@echo "installing PyTorch into $(VENV) (once)"
	$(VENV)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/ready: python/requirements-dev.txt python/requirements-wheel.txt $(VENV)/demo
	@$(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "the frameworks of the tests need Python 3.11 or newer: make clean, then again with such a python3" >&2; exit 1; }
	@echo "installing Python tools and frameworks into $(VENV) (once)"
	$(VENV)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/turbo: scripts/native-tools.sh | $(VENV)/made
	@bash $< > $@.new
	@mv $@.new $@

# ---- the two builds ---------------------------------------------------------------------------------------------------

# Everything in the dev profile (dependencies optimised): libraries, binary, tests, examples, benches, Python extension. A lint
# is an error; plain `cargo build` shows rustc's own ones, as warnings.
.PHONY: build
build: $(VENV)/turbo
	@clippy-driver --version >/dev/null || { echo "this needs clippy (rustup component add clippy; Debian: rust-clippy)" >&2; exit 1; }
	$(LINTED) cargo build $(WORLD) --all-targets
	@ln -sf ../../target/debug/lib_native.so python/bowstring/_native.abi3.so

.PHONY: build-release
build-release: $(VENV)/turbo
	cargo build $(WORLD) --lib --bins --release
	@ln -sf ../../target/release/lib_native.so python/bowstring/_native.abi3.so

# ---- what people run --------------------------------------------------------------------------------------------------

.PHONY: demo
demo: build-release $(VENV)/demo ## read, decode and train on the shipped photos
	target/release/bowstring demo --photos fixtures/imagenet40.parquet
	$(PY) examples/train_torch.py

.PHONY: test
test: lint test-doc test-rust test-python ## lint, doc tests and examples, all Rust tests, Python tests
	@passed() { grep -oE '[0-9]+ passed' "$$1" | awk '{sum += $$1} END {print sum}'; }; \
		echo; echo "Rust: $$(passed target/test-rust.log), Python: $$(passed target/test-python.log)"; \
		echo "$$(( $$(passed target/test-rust.log) + $$(passed target/test-python.log) )) passed, 0 failed"

# Not part of `make test`, which builds all features together: the workflow runs it with the oldest Rust.
.PHONY: check-features
check-features: ## the crate without its features, and with each alone
	for feature in '' cli cloud convert cuda flight fuse otel; do echo "features: $$feature"; \
		cargo $(TOOLCHAIN) check --locked --package bowstring --no-default-features --features "$$feature" || exit 1; done

# One more than cores: many tests wait for leases and timeouts.
AT_ONCE = $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))

.PHONY: test-rust
test-rust: build
ifneq ($(NEXTEST),)
	$(LINTED) cargo nextest run $(WORLD) 2>&1 | tee target/test-rust.log
else
	$(LINTED) cargo test $(WORLD) --lib --bins --tests -- --test-threads $(AT_ONCE) 2>&1 | tee target/test-rust.log
endif

.PHONY: test-doc
test-doc: build ## doc tests, the lints of docs, examples
	RUSTDOC="$(CURDIR)/scripts/rustdoc.sh" $(LINTED) cargo test $(WORLD) --doc
	for example in examples/*.rs; do name=$$(basename $$example .rs); echo "example $$name"; target/debug/examples/$$name; done

.PHONY: test-python
test-python: build $(VENV)/ready
	printf 'examples/%s\n' 'train_torch.py --epochs 2' serve_torch.py 'tf_fit.py --epochs 3' 'jax_train.py --epochs 3' | \
		xargs -t -P 2 -L 1 $(PY)
	cd python && ../$(PY) -m pytest -n 2 --dist loadfile --durations 25 --ignore tests/frameworks --ignore tests/loops 2>&1 | tee ../target/test-python.log
	cd python && bash ../scripts/each-alone.sh ../$(PY) tests/frameworks/test_*.py tests/loops/test_*.py 2>&1 | \
		tee -a ../target/test-python.log

# Not part of `test`: the feature has dependencies of its own, and the cluster is fetched.
.PHONY: test-hdfs
test-hdfs: $(VENV)/turbo $(VENV)/ready ## HDFS, against a real cluster; needs Java and Maven
	cargo clippy $(WORLD) --features bowstring/hdfs --lib --tests -- -D warnings
	cargo build $(WORLD) --features bowstring/hdfs --lib --bins
	cargo test $(WORLD) --features bowstring/hdfs --lib -- store::
	@ln -sf ../../target/debug/lib_native.so python/bowstring/_native.abi3.so
	bash scripts/servers/hdfs.sh --fetch
	cd python && ../$(PY) -m pytest tests/test_hdfs.py tests/test_conformance.py -k hdfs

# Rust is built beside the checks of Python, which take a core for two minutes, and on a fresh machine beside the fetching of their tools.
.PHONY: lint
lint: $(VENV)/turbo ## rustfmt, clippy, ruff, mypy, stubtest, floors
	cargo fmt --all --check
	@$(MAKE) -j2 lint-python build
	@! $(LINTED) cargo build $(WORLD) --all-targets 2>&1 | grep Compiling || { echo "cargo compiles what is built already" >&2; exit 1; }
	$(PY) -m mypy.stubtest --mypy-config-file python/pyproject.toml bowstring._native
	$(LINTED) cargo test $(WORLD) --test it -- floors:: circles:: advisories::

.PHONY: lint-python
lint-python: $(VENV)/ready
	ruff check .
	ruff format --check .
	$(PY) scripts/kernels.py --check
	mypy --config-file python/pyproject.toml --strict python/bowstring
	MYPYPATH=tests:python mypy --config-file python/pyproject.toml --strict -p chaos

# Licences of what the wheel contains, for whoever gets it.
python/THIRD-PARTY-NOTICES.txt: Cargo.lock scripts/notices.py scripts/sbom.py $(VENV)/made
	$(PY) scripts/notices.py --output $@

.PHONY: wheel
wheel: $(VENV)/turbo $(VENV)/wheel python/THIRD-PARTY-NOTICES.txt ## a release wheel in dist/
	$(VENV)/bin/maturin build --release --locked --manifest-path python/Cargo.toml --features "$(strip fuse hdfs $(TURBO))" --out dist

.PHONY: crate
crate: ## the crate as it would be published: what is in it, and that it builds from that alone
	@cargo package --locked --package bowstring --list $(DIRTY) | grep -vE '^(src|examples|benches)/'
	cargo publish --locked --package bowstring --dry-run $(DIRTY)

.venv-docs/ready: docs/requirements.txt
	python3 -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: docs
docs: .venv-docs/ready ## the documentation site in dist/site; a link that leads nowhere is an error
	python3 scripts/site.py dist/pages
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet
	@echo dist/site/index.html

.PHONY: check-deploy
check-deploy: ## workflows, chart and manifests by the tools that know them, as far as they are installed (NEED=all)
	bash scripts/check-deploy.sh

.PHONY: image
image: build $(VENV)/demo ## the static server in a root filesystem in dist/image, and what it does there (Linux, root, musl-gcc)
	bash scripts/image.sh dist/image

.PHONY: container
container: build $(VENV)/demo ## the image in containers: demo, server, two ranks, a restart; built from the Dockerfile first where IMAGE names none (docker or podman)
	bash scripts/container.sh

.PHONY: bench
bench: $(VENV)/turbo ## Rust benches (criterion)
	cargo bench --locked -p bowstring $(FEATURES)

# Installs the requirements of a target in a venv of its own, which sees the torch, numpy and pyarrow of $(VENV): no second copy of torch.
define venv_beside
	python3 -m venv $(@D)
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(@D)/dev.pth
	@mv $(@D)/dev.pth "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
endef

.venv-peers/ready: benches/peers/requirements.txt $(VENV)/ready
	@echo "installing the peers into .venv-peers (once, about 1 GB)"
	$(venv_beside)

.PHONY: bench-peers
bench-peers: build-release .venv-peers/ready ## Python peers against bowstring, alternating runs (PEERS_ARGS="--only recsys")
	.venv-peers/bin/python benches/peers/run.py $(PEERS_ARGS)

.venv-streams/ready: benches/peers/requirements-streams.txt $(VENV)/ready
	@echo "installing streaming datasets into .venv-streams (once)"
	$(venv_beside)

.PHONY: bench-consumers
bench-consumers: build-release .venv-streams/ready ## consumers of one cache beside mounts and streaming datasets (SERVERS: JuiceFS, rclone, SeaweedFS, toxiproxy; root)
	$(PY) benches/peers/consumers.py --servers $(SERVERS) --streams .venv-streams/bin/python $(PEERS_ARGS)

# One task: `make bench-tables PEERS_ARGS="--only delta rows"`.
.PHONY: bench-tables
bench-tables: build-release .venv-peers/ready ## tables of Delta Lake and Iceberg against deltalake, pyiceberg and plain Parquet
	.venv-peers/bin/python benches/peers/table_pairs.py $(PEERS_ARGS)

# make version-sets SETS="15.4 -k petastorm"
.PHONY: version-sets
version-sets: build ## the tests without frameworks, with old and new Pythons and libraries, those of Databricks' supported images among them
	bash scripts/version-sets.sh $(SETS)

# make mixed FORMER=v0.1.0 MIXED_ARGS="-k gang"
.PHONY: mixed
mixed: build $(VENV)/ready ## this version and a former one (FORMER: a git ref, or a checkout that is built) as clients, servers, readers of each other
	@test -n "$(FORMER)" || { echo "make mixed needs FORMER=<git ref>" >&2; exit 2; }
	PY="$(PY)" TURBO="$(TURBO)" bash scripts/mixed.sh "$(FORMER)" $(MIXED_ARGS)

.PHONY: peers
peers: build ## records what this version says and writes, in fixtures/peers, for the tests of later versions
	$(LINTED) BOWSTRING_BLESS=1 cargo test $(WORLD) --test it -- peers::this_version_is_recorded_on_request

# make long-run LONG_SECONDS=7200
LONG_SECONDS ?= 300

.PHONY: long-run
long-run: build-release $(VENV)/demo ## epochs without end, local and served: memory, descriptors, threads, latency stay flat
	$(PY) benches/long_run.py --seconds $(LONG_SECONDS)

# make chaos CHAOS_SEED=7 CHAOS_SECONDS=300 CHAOS_ARGS="--only partition --former path/to/bowstring"
CHAOS_SECONDS ?= 180

.PHONY: chaos
chaos: build $(VENV)/ready ## faults over real links between namespaces (Linux, root), and whether each row came once
	cd tests && ../$(PY) -m chaos $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) --seconds $(CHAOS_SECONDS) $(CHAOS_ARGS)

# ---- supply chain -----------------------------------------------------------------------------------------------------

.PHONY: sbom
sbom: $(VENV)/made ## what the wheel and the binary are made of, as CycloneDX in dist/, the same bytes each time
	@mkdir -p dist
	$(PY) scripts/sbom.py --output dist/bowstring.cdx.json

# Both read what is in Cargo.lock; licences and bans need the crates that are fetched anyway, advisories their database.
.PHONY: deny
deny: ## bans, licences and sources offline, advisories from the network (needs: cargo install cargo-deny)
	@cargo deny --version >/dev/null 2>&1 || { echo "make deny needs: cargo install cargo-deny --locked" >&2; exit 1; }
	cargo deny --offline check bans licenses sources
	@cargo deny check advisories || { echo "advisories need https://github.com/rustsec/advisory-db, or one of them counts: see above" >&2; exit 1; }

.PHONY: wheel-twice
wheel-twice: $(VENV)/turbo $(VENV)/wheel ## the release wheel, built twice in two places: the same bytes
	PY="$(CURDIR)/$(PY)" MATURIN="$(CURDIR)/$(VENV)/bin/maturin" TURBO="$(TURBO)" bash scripts/wheel-twice.sh

.PHONY: soak
soak: ## the full counts of every random and fault test
	BOWSTRING_SOAK=1 NEXTEST_PROFILE=soak $(MAKE) test-rust test-python

# make fuzz MINUTES=10 FUZZ_TARGETS=pickle,npy FUZZ_ARGS="--sanitizer none"
MINUTES ?= 1

.PHONY: fuzz
fuzz: $(VENV)/turbo ## each fuzz target for MINUTES (1): runs, corpus, findings, lines reached (best with nightly and cargo-fuzz)
	python3 scripts/fuzz.py --seconds $$(( 60 * $(MINUTES) )) --targets "$(FUZZ_TARGETS)" $(FUZZ_ARGS) -- $(WORLD)

.PHONY: clean
clean: ## remove what was built and installed
	cargo clean
	rm -rf $(VENV) .venv-docs .venv-peers .venv-streams dist bench-out python/bowstring/_native.abi3.so
