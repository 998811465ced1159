# Two commands do everything: `make demo` shows the main job, `make test` runs all tests.

CARGO ?= cargo
TRACE ?=
SKIPS := $(CURDIR)/target/skipped-tests

.PHONY: demo test bench lint peers

demo:
	$(CARGO) build --release --quiet
	./target/release/kvjournal demo $(if $(TRACE),--trace $(TRACE))

# KVJ_LONG=1 makes the crash, power-cut and property tests longer. A test that cannot run here is counted.
test:
	@mkdir -p target && rm -f $(SKIPS) && touch $(SKIPS)
	KVJ_SKIPS=$(SKIPS) $(CARGO) test
	@echo "skipped tests: $$(wc -l < $(SKIPS))" && cat $(SKIPS)

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

bench:
	$(CARGO) bench

peers:
	cd benches/peers && $(CARGO) run --release
