# A thin door to scripts/setup, CMake and the programs. `make demo` and `make test` are all that a fresh clone needs.
BUILD  = build/release
PREFIX = /usr/local
TESTS  = scripts/tests $(BUILD) build/test-results.xml
CONFIGURE = # more for CMake, as -DBT_WERROR=ON

.PHONY: help demo test test-slow build install package clean

help:
	@echo 'make demo       set up, build, and send a prompt to the demo model on 2 prefill and 2 decode ranks'
	@echo 'make test       set up, build, and run every test that is not labelled slow'
	@echo 'make test-slow  the slow tests: every route and chunk size, all models'
	@echo 'make build      set up and build, into $(BUILD)'
	@echo 'make install    into PREFIX=$(PREFIX) (the tree may be moved afterwards)'
	@echo 'make package    a tarball of that tree'

demo: $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target programs
	@scripts/demo $(BUILD)/bin models/demo

test: build
	@$(TESTS) -LE slow

test-slow: build
	@$(TESTS) -L slow

build: $(BUILD)/build.ninja
	@cmake --build $(BUILD)

install: build
	@umask 022 && cmake --install $(BUILD) --prefix "$(PREFIX)"

package: build
	@umask 022 && cd $(BUILD) && cpack

clean:
	@rm -rf build

build/.setup-done: scripts/setup
	@scripts/setup
	@mkdir -p build && touch $@

$(BUILD)/build.ninja: build/.setup-done
	@cmake --preset release -B $(BUILD) $(CONFIGURE)
	@touch $@
ifneq ($(strip $(CONFIGURE)),)
.PHONY: $(BUILD)/build.ninja # what is asked of CMake holds in a tree that is configured already too
endif
