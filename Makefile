# SPDX-License-Identifier: Apache-2.0
#
# make            build/libfastwrite.so and build/fastwrite; make deps installs what that needs
# make help       the other targets
#
# V=1             show the commands
# SAN=asan        address and undefined behaviour sanitizers (also tsan, ubsan), in build-asan/ ...
# DEBUG=1         -O1 -g, assertions and kill steps, in build-debug/

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# What only compiles uses all processors.  Other goals do one thing after another, and call make for such.
COMPILING := all build-all library command tests-build units hooks power surroundings fuzz-build check-build check-tests
ifeq ($(filter-out $(COMPILING),$(or $(MAKECMDGOALS),all)),)
ifeq ($(findstring jobserver,$(MAKEFLAGS) $(shell echo "$$MAKEFLAGS")),)
MAKEFLAGS += -j$(shell nproc) --output-sync=target
endif
endif

VERSION := 0.1.0

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/fastwrite
UNITDIR ?= $(PREFIX)/lib/systemd/system
# where the shells look for completions
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
CC ?= cc
INSTALL ?= install
PYTHON ?= .venv/bin/python

Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-7s %s\n' '$(1)' '$(2)')

# ---- flags ----

SAN_FLAGS_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SAN_FLAGS_tsan := -fsanitize=thread -fno-omit-frame-pointer
SAN_FLAGS_ubsan := -fsanitize=undefined -fno-sanitize-recover=undefined
ifneq ($(SAN),)
ifeq ($(SAN_FLAGS_$(SAN)),)
$(error SAN=$(SAN): allowed are asan, tsan, ubsan)
endif
endif

BUILD := build$(if $(filter 1,$(DEBUG)),-debug)$(if $(SAN),-$(SAN))

# Sanitized builds carry the kill steps too, so that the same unit tests run in them.
OPT := $(if $(filter 1,$(DEBUG))$(SAN),-O1 -g -DFASTWRITE_DEBUG=1,-O2 -g)

# -Wconversion: sizes and offsets of a file must never be cut silently.
# -Wno-missing-attributes: an alias of an interposed symbol does not repeat the C library's attributes.
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wundef \
	-Wvla -Wconversion -Wno-sign-conversion -Wno-missing-attributes
CPPFLAGS += -D_GNU_SOURCE -DFASTWRITE_VERSION='"$(VERSION)"' -Ishim
CFLAGS ?= $(OPT)
C_ALL = -std=gnu17 $(CFLAGS) $(WARN) $(WERROR) -fvisibility=hidden -fPIC -ftls-model=initial-exec \
	-fno-strict-aliasing -fno-delete-null-pointer-checks -fdata-sections -pthread $(SAN_FLAGS_$(SAN))
DEPGEN = -MMD -MP

STATIC_LIBS := -Wl,-Bstatic -linih -Wl,-Bdynamic
# Small variables stand together, behind the large tables: what a fork changes of them lies in few pages, each of which
# the kernel copies.
# A sanitizer's run-time library is not among the library's own dependencies, hence no -z defs with it.
LIB_LDFLAGS = -shared -Wl,-soname,libfastwrite.so -Wl,--version-script,$(EXPORTS) \
	-Wl,-z,relro,-z,now,-z,nodelete -Wl,--sort-section=alignment $(if $(SAN),,-Wl,-z,defs) $(LDFLAGS)
EXE_LDFLAGS = -pie -Wl,-z,relro,-z,now $(LDFLAGS)
LIBS := -pthread -ldl

# ---- sources ----

# A folder is a layer, from the top to the bottom; calls go down only (tests/test_layers.py).
LAYERS := command hooks process descriptors attach sync flush staging files pages recovery foreign wal format config base
CORE_LAYERS := $(filter-out command hooks,$(LAYERS))
CLI_SRC := $(sort $(wildcard shim/command/*.c))
HOOKS_SRC := $(sort $(wildcard shim/hooks/*.c shim/hooks/*.S))
# What the command and the unit tests link.
CORE_SRC := $(sort $(foreach layer,$(CORE_LAYERS),$(wildcard shim/$(layer)/*.c)))
LIB_SRC := $(HOOKS_SRC) $(CORE_SRC)

objects = $(patsubst shim/%,$(BUILD)/obj/%.o,$(basename $(1)))
LIB_OBJ := $(call objects,$(LIB_SRC))
CORE_OBJ := $(call objects,$(CORE_SRC))
CLI_OBJ := $(call objects,$(CLI_SRC))

UNIT_SRC := $(sort $(wildcard tests/unit/test_*.c))
UNIT_BIN := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(UNIT_SRC))
HOOK_SRC := $(sort $(wildcard tests/hooks/*.c))
HOOK_BIN := $(patsubst tests/hooks/%.c,$(BUILD)/tests/%,$(HOOK_SRC))
POWER_SRC := $(sort $(wildcard tests/power/*.c))
POWER_BIN := $(patsubst tests/power/%.c,$(BUILD)/tests/power/%,$(POWER_SRC))
FUZZ_CORPUS := build/fuzz-corpus/.made
SURROUNDINGS_BIN := $(BUILD)/tests/surroundings/life

LIBRARY := $(BUILD)/libfastwrite.so
COMMAND := $(BUILD)/fastwrite
EXPORTS := $(BUILD)/exports.map
CORE := $(BUILD)/core.a

# ---- build ----

.PHONY: all build-all library command check-build
all: build-all
build-all: $(LIBRARY) $(COMMAND)
library: $(LIBRARY)
command: $(COMMAND)

# Nothing is installed here: what is missing is named before the compiler misses it.
HOST_CC = $(filter-out --sysroot=% -B% -L%,$(CC))
check-build:
	$(Q)CC='$(HOST_CC)' scripts/deps --check build

# The flags are part of what an object depends on: another V, CC or CFLAGS rebuilds what it changes.
FLAGS_NOW = $(CC) $(CPPFLAGS) $(C_ALL) $(LDFLAGS)
$(BUILD)/.flags: force | check-build
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(FLAGS_NOW))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(FLAGS_NOW))' > $@
.PHONY: force
force:

# Only the object that prints the commit depends on it: `private` keeps the definition from all others.
$(BUILD)/.commit: force
	@mkdir -p $(@D)
	@commit=$$(scripts/commit); printf '%s\n' "$${commit:+ ($$commit)}" | cmp -s - $@ || \
		printf '%s\n' "$${commit:+ ($$commit)}" > $@
$(call objects,shim/command/main.c): $(BUILD)/.commit
$(call objects,shim/command/main.c): private CPPFLAGS += -DFASTWRITE_COMMIT='"$(shell cat $(BUILD)/.commit)"'

$(BUILD)/obj/%.o: shim/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(C_ALL) $(DEPGEN) -c -o $@ $<

# The sanitizer's own start calls these, before it is ready for anybody.
ifeq ($(SAN),tsan)
$(call objects,shim/hooks/size.c shim/hooks/move.c shim/hooks/next.c shim/hooks/real.c): C_ALL += -fno-sanitize=thread
endif

$(BUILD)/obj/%.o: shim/%.S $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,AS,$<)
	$(Q)$(CC) $(CPPFLAGS) $(C_ALL) $(DEPGEN) -c -o $@ $<

# Only what hooks.def lists leaves the library.
$(EXPORTS): scripts/exports shim/hooks/hooks.def
	@mkdir -p $(@D)
	$(call say,GEN,$@)
	$(Q)scripts/exports --map > $@

$(LIBRARY): $(LIB_OBJ) $(EXPORTS)
	$(call say,LD,$@)
	$(Q)$(CC) $(C_ALL) $(LIB_LDFLAGS) -o $@ $(LIB_OBJ) $(STATIC_LIBS) $(LIBS)

# An archive: the command and each unit test take from the core what they use.
$(CORE): $(CORE_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(CORE_OBJ)

$(COMMAND): $(CLI_OBJ) $(CORE)
	$(call say,LD,$@)
	$(Q)$(CC) $(C_ALL) $(EXE_LDFLAGS) -o $@ $(CLI_OBJ) $(CORE) $(STATIC_LIBS) $(LIBS)

# ---- tests ----

.PHONY: tests-build units hooks power surroundings check-tests
# The unit tests run with assertions and kill steps, everything else against the library as it is installed.
tests-build: build-all $(if $(filter 1,$(DEBUG)),units,hooks power surroundings)
units: $(UNIT_BIN) $(FUZZ_CORPUS)
hooks: $(HOOK_BIN)
power: $(POWER_BIN)
surroundings: $(SURROUNDINGS_BIN)
$(UNIT_BIN) $(HOOK_BIN) $(POWER_BIN): | check-tests

check-tests:
	$(Q)CC='$(HOST_CC)' scripts/deps --check build test

# The unit tests replay the inputs of the fuzzers; all builds share them.
$(FUZZ_CORPUS): tests/fuzz/make_corpus.py tests/fuzz/grown.tar.xz $(wildcard tests/fuzz/found/*/*)
	$(call say,GEN,$(@D))
	$(Q)python3 $< $(@D)

$(BUILD)/tests/unit/%: tests/unit/%.c $(CORE) $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,UNIT,$@)
	$(Q)$(CC) $(CPPFLAGS) -Itests/unit $(C_ALL) $(DEPGEN) -MF $@.d -o $@ $< $(CORE) \
		-lcmocka $(STATIC_LIBS) $(LIBS)

# Programs of their own: compiled as anybody's would be, without the library's flags.
$(BUILD)/tests/test_async: HOOK_LIBS := -laio -luring
$(BUILD)/tests/test_unhooked: HOOK_LIBS := -luring
$(BUILD)/tests/%: tests/hooks/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,HOOK,$@)
	$(Q)$(CC) -D_GNU_SOURCE -std=gnu17 -O2 -g -Wall -Wextra $(DEPGEN) -MF $@.d -pthread $(SAN_FLAGS_$(SAN)) \
		-o $@ $< -lcmocka -ldl -lrt -lutil $(HOOK_LIBS)

$(BUILD)/tests/power/disk: POWER_FLAGS = $(shell pkg-config --cflags --libs fuse3)
$(BUILD)/tests/power/meet: POWER_FLAGS = -Ishim
$(BUILD)/tests/power/%: tests/power/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,POWER,$@)
	$(Q)$(CC) -D_GNU_SOURCE -std=gnu17 -O2 -g -Wall -Wextra $(DEPGEN) -MF $@.d -pthread -o $@ $< $(POWER_FLAGS)

$(BUILD)/tests/surroundings/%: tests/surroundings/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(call say,LIFE,$@)
	$(Q)$(CC) -D_GNU_SOURCE -std=gnu17 -O2 -g -Wall -Wextra $(DEPGEN) -MF $@.d -o $@ $<

# Unit tests run in the debug build, which has the kill steps; everything preloaded in the release build.
.PHONY: test test-unit test-python check-exports
ifeq ($(SAN),tsan)
# A sanitized library can only be preloaded into a program that is sanitized, too.
test: deps-test
	$(Q)$(MAKE) --no-print-directory build-all units hooks
	$(Q)python3 tests/run_all.py --units $(BUILD) --hooks $(BUILD)
else ifneq ($(SAN),)
test: test-unit
else
test: deps
	$(Q)$(MAKE) --no-print-directory tests-build
	$(Q)$(MAKE) --no-print-directory DEBUG=1 tests-build
	$(Q)$(PYTHON) tests/run_all.py --build build --units build-debug --exports --python
endif

test-unit: deps-test
	$(Q)$(MAKE) --no-print-directory $(if $(SAN),,DEBUG=1) units
	$(Q)python3 tests/run_all.py --units $(if $(SAN),$(BUILD),build-debug)

test-python: deps
	$(Q)$(MAKE) --no-print-directory tests-build
	$(Q)$(MAKE) --no-print-directory DEBUG=1 tests-build
	$(Q)$(PYTHON) tests/run_all.py --build build --python

# The hook programs with the C libraries of other Debian releases, which are downloaded; says which it covered.
.PHONY: test-glibc
test-glibc: deps-test
	$(Q)$(MAKE) --no-print-directory library hooks
	$(Q)python3 tests/run_glibc.py --build build $(ARGS)

# Unit tests, hook programs and kill tests in emulated machines: kernels 5.10, 6.1, 6.12, aarch64 (docs/results/machines.md);
# some hours.  ARGS: names, --suites units hooks kill, --kvm, -k EXPRESSION.
.PHONY: machines
machines: deps-test
	$(Q)scripts/deps machines
	$(Q)$(MAKE) --no-print-directory tests-build
	$(Q)$(MAKE) --no-print-directory DEBUG=1 tests-build
	$(Q)python3 tests/run_machine.py $(ARGS)

check-exports: $(LIBRARY)
	$(Q)scripts/exports --check $(LIBRARY)

# ---- fuzzing: each tests/fuzz/fuzz_NAME.c is a target; make_corpus.py makes the first inputs ----

FUZZ_CC ?= clang
FUZZ_BUILD := build-fuzz
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_BIN := $(patsubst tests/fuzz/%.c,$(FUZZ_BUILD)/%,$(FUZZ_SRC))
FUZZ_OBJ := $(patsubst shim/%.c,$(FUZZ_BUILD)/obj/%.o,$(CORE_SRC))
FUZZ_FLAGS = -std=gnu17 -O1 -g -fno-omit-frame-pointer -fno-strict-aliasing -pthread \
	-fsanitize=address,undefined -fno-sanitize-recover=undefined
FASTWRITE_FUZZ_SECONDS ?= 60

$(FUZZ_BUILD)/obj/%.o: shim/%.c
	@mkdir -p $(@D)
	$(call say,FUZZCC,$<)
	$(Q)$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link $(DEPGEN) -c -o $@ $<

$(FUZZ_BUILD)/core.a: $(FUZZ_OBJ)
	$(Q)rm -f $@ && $(AR) rcs $@ $(FUZZ_OBJ)

$(FUZZ_BUILD)/fuzz_%: tests/fuzz/fuzz_%.c $(FUZZ_BUILD)/core.a
	$(call say,FUZZ,$@)
	$(Q)$(FUZZ_CC) $(CPPFLAGS) -Itests/fuzz $(FUZZ_FLAGS) -fsanitize=fuzzer $(DEPGEN) -MF $@.d -o $@ $< \
		$(FUZZ_BUILD)/core.a $(STATIC_LIBS) $(LIBS)

.PHONY: fuzz fuzz-build soak-fuzz
fuzz-build: $(FUZZ_BIN) $(FUZZ_CORPUS)
fuzz: deps-fuzz
	$(Q)$(MAKE) --no-print-directory fuzz-build
	$(Q)python3 tests/run_fuzz.py --build $(FUZZ_BUILD) --seconds $(FASTWRITE_FUZZ_SECONDS) $(ARGS)
soak: soak-fuzz
soak-fuzz: deps-fuzz
	$(Q)$(MAKE) --no-print-directory fuzz-build
	$(Q)python3 tests/run_fuzz.py --build $(FUZZ_BUILD) --seconds $${FASTWRITE_SOAK_SECONDS:-3600} $(ARGS)

# For hours: what `make test` does for a minute.  FASTWRITE_SOAK_SECONDS: how long each part takes.
.PHONY: soak soak-differential soak-programs soak-power soak-surroundings
soak: soak-differential soak-programs soak-power soak-surroundings
soak-differential: deps
	$(Q)$(MAKE) --no-print-directory build-all
	$(Q)$(MAKE) --no-print-directory DEBUG=1 build-all
	$(Q)PYTHONPATH=tests $(PYTHON) -m tools.machine soak $(ARGS)

# Real programs, each natively, with the library, and with kill -9 and recovery; some 40 minutes.  docs/results/programs.md is
# its last result.  ARGS: names, --quick, --kills N, --markdown FILE, --list.
soak-programs: deps
	$(Q)scripts/deps programs
	$(Q)$(MAKE) --no-print-directory build-all
	$(Q)PYTHONPATH=tests $(PYTHON) -m programs --build build $(ARGS)

# As root.  For FASTWRITE_SOAK_SECONDS, or ARGS="--shutdowns 100 --cuts 500" for a number of power losses.
soak-power: deps
	$(Q)$(MAKE) --no-print-directory build-all power
	$(Q)cd tests && '$(abspath $(PYTHON))' -m power $(or $(ARGS),--soak)
	$(if $(ARGS),,$(Q)cd tests && '$(abspath $(PYTHON))' -m power.prefix --shutdowns 20 --cuts 20)

# As root: containers that are killed and moved, a virtual machine that loses power and is shut down; 40 minutes.
# tests/surroundings/README.md.  ARGS="--rounds 200", "--cuts 100 --sync journal", ...
soak-surroundings: deps
	$(Q)scripts/deps machine
	$(Q)$(MAKE) --no-print-directory build-all power surroundings
	$(Q)cd tests && '$(abspath $(PYTHON))' -m surroundings \
		$(or $(ARGS),--rounds 200 --cuts 100 --shutdowns 20)

# ---- laboratory ----

.PHONY: experiment apps bench bench-cost bench-sync
experiment: deps-lab
	$(Q)$(MAKE) --no-print-directory build-all
	$(Q)$(PYTHON) -m harness experiment $(ARGS)

apps: deps-lab
	$(Q)scripts/deps apps
	$(Q)$(MAKE) --no-print-directory build-all
	$(Q)$(PYTHON) -m harness suite apps $(ARGS)

# A missed target (status 1) does not keep the rest from being measured.
NOTED = || { status=$$?; [ $$status -eq 1 ] || exit $$status; missed=1; }
costs = PYTHONPATH=tests python3 -m tools.cost --build build $(NOTED); $(PYTHON) -m harness cost $(1) $(NOTED)

bench: deps
	$(Q)$(MAKE) --no-print-directory build-all
	$(Q)missed=0; $(PYTHON) -m harness bench $(ARGS) $(NOTED); $(call costs,$(COST_ARGS)); \
		$(PYTHON) -m harness sync $(SYNC_ARGS) $(NOTED); exit $$missed

# What it compares with is used when it is there: libeatmydata (Debian: eatmydata), PostgreSQL (postgresql).
bench-sync: deps-lab
	$(Q)$(MAKE) --no-print-directory build-all
	$(Q)$(PYTHON) -m harness sync $(ARGS)

# Rows whose programs are not installed (cmake, ninja, git, pip ...) are skipped; so are system calls without strace.
bench-cost: deps-test deps-lab
	$(Q)$(MAKE) --no-print-directory build-all
	$(Q)missed=0; $(call costs,$(ARGS)); exit $$missed

# ---- what must be there ----

.PHONY: deps deps-build deps-test deps-lint deps-fuzz deps-lab deps-deb deps-rpm
deps:
	$(Q)scripts/deps build test python-test surroundings
deps-build:
	$(Q)scripts/deps build
deps-test:
	$(Q)scripts/deps build test
# What a run of the laboratory needs, without what only tests need.
deps-lab:
	$(Q)scripts/deps build lab python
deps-lint:
	$(Q)scripts/deps build lint python-test
deps-fuzz:
	$(Q)scripts/deps build fuzz
deps-deb:
	$(Q)scripts/deps build deb
deps-rpm:
	$(Q)scripts/deps build rpm

# ---- style ----

C_STYLE := $(wildcard shim/*/*.[ch] tests/*/*.[ch] harness/workloads/*.[ch])
.PHONY: lint format
lint: deps-lint
	$(call say,LINT,clang-format)
	$(Q)printf '%s\n' $(C_STYLE) | xargs -P "$$(nproc)" -n 24 .venv/bin/clang-format --dry-run -Werror || \
		{ echo 'make format puts it right' >&2; exit 1; }
	$(call say,LINT,cppcheck)
	$(Q)scripts/lint-c
	$(call say,LINT,ruff)
	$(Q).venv/bin/ruff check --quiet .
	$(Q).venv/bin/ruff format --quiet --check . || { echo 'make format puts it right' >&2; exit 1; }

format: deps-lint
	$(Q).venv/bin/clang-format -i $(C_STYLE)
	$(Q).venv/bin/ruff format --quiet .

# ---- installing ----

# By a rename: programs run with the old file, and one that starts meanwhile finds the old file or the new one.
# $(call replace,MODE,SOURCE,TARGET)
replace = $(INSTALL) -m $(1) $(2) $(3).new && mv -f $(3).new $(3)

.PHONY: install uninstall
# The loader finds the plain name of the library in LD_PRELOAD only by its cache.
LDCONFIG = $(if $(DESTDIR),,$(if $(filter /usr /usr/local,$(PREFIX)),ldconfig))

install: all
	$(Q)$(INSTALL) -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)' '$(DESTDIR)$(MANDIR)/man1' \
		'$(DESTDIR)$(MANDIR)/man5' '$(DESTDIR)$(MANDIR)/man7' \
		'$(DESTDIR)$(DOCDIR)' '$(DESTDIR)$(UNITDIR)' '$(DESTDIR)$(BASHDIR)' '$(DESTDIR)$(ZSHDIR)' \
		'$(DESTDIR)$(FISHDIR)'
	$(Q)$(call replace,755,$(COMMAND),'$(DESTDIR)$(BINDIR)/fastwrite')
	$(Q)$(call replace,644,$(LIBRARY),'$(DESTDIR)$(LIBDIR)/libfastwrite.so')
	$(if $(LDCONFIG),$(Q)if [ "$$(id -u)" = 0 ] && command -v $(LDCONFIG) >/dev/null; then $(LDCONFIG); fi)
	$(Q)$(INSTALL) -m 644 docs/fastwrite.1 '$(DESTDIR)$(MANDIR)/man1/fastwrite.1'
	$(Q)$(INSTALL) -m 644 docs/fastwrite.ini.5 '$(DESTDIR)$(MANDIR)/man5/fastwrite.ini.5'
	$(Q)$(INSTALL) -m 644 docs/libfastwrite.7 '$(DESTDIR)$(MANDIR)/man7/libfastwrite.7'
	$(Q)$(INSTALL) -m 644 configs/completions/fastwrite.bash '$(DESTDIR)$(BASHDIR)/fastwrite'
	$(Q)$(INSTALL) -m 644 configs/completions/_fastwrite '$(DESTDIR)$(ZSHDIR)/_fastwrite'
	$(Q)$(INSTALL) -m 644 configs/completions/fastwrite.fish '$(DESTDIR)$(FISHDIR)/fastwrite.fish'
	$(Q)$(INSTALL) -m 644 LICENSE CHANGELOG.md $(wildcard README.md) configs/fastwrite.ini.example \
		'$(DESTDIR)$(DOCDIR)'
	$(Q)sed 's|@BINDIR@|$(BINDIR)|g' configs/fastwrite-recover.service.in \
		> '$(DESTDIR)$(UNITDIR)/fastwrite-recover.service'
	$(Q)sed 's|@BINDIR@|$(BINDIR)|g' configs/fastwrite-recover-shutdown.service.in \
		> '$(DESTDIR)$(UNITDIR)/fastwrite-recover-shutdown.service'
	$(Q)sed 's|@BINDIR@|$(BINDIR)|g' configs/fastwrite-metrics.service.in \
		> '$(DESTDIR)$(UNITDIR)/fastwrite-metrics.service'
	$(Q)chmod 644 '$(DESTDIR)$(UNITDIR)/fastwrite-recover.service' \
		'$(DESTDIR)$(UNITDIR)/fastwrite-recover-shutdown.service' \
		'$(DESTDIR)$(UNITDIR)/fastwrite-metrics.service'
	$(Q)$(INSTALL) -m 644 configs/fastwrite-metrics.timer '$(DESTDIR)$(UNITDIR)'
	$(Q)$(INSTALL) -m 644 configs/alerts.yml configs/dashboard.json $(wildcard configs/bpftrace/*.bt) \
		'$(DESTDIR)$(DOCDIR)'

uninstall:
	$(Q)rm -f '$(DESTDIR)$(BINDIR)/fastwrite' '$(DESTDIR)$(LIBDIR)/libfastwrite.so' \
		'$(DESTDIR)$(MANDIR)/man1/fastwrite.1' '$(DESTDIR)$(MANDIR)/man5/fastwrite.ini.5' \
		'$(DESTDIR)$(MANDIR)/man7/libfastwrite.7' '$(DESTDIR)$(UNITDIR)/fastwrite-recover.service' \
		'$(DESTDIR)$(UNITDIR)/fastwrite-recover-shutdown.service' \
		'$(DESTDIR)$(UNITDIR)/fastwrite-metrics.service' '$(DESTDIR)$(UNITDIR)/fastwrite-metrics.timer' \
		'$(DESTDIR)$(BASHDIR)/fastwrite' '$(DESTDIR)$(ZSHDIR)/_fastwrite' \
		'$(DESTDIR)$(FISHDIR)/fastwrite.fish'
	$(Q)rm -rf '$(DESTDIR)$(DOCDIR)'

# The commit that is checked out; the same bytes each time.
.PHONY: dist
DIST := libfastwrite-$(VERSION)
dist:
	$(Q)mkdir -p build
	$(Q)git archive --format=tar --prefix=$(DIST)/ HEAD | gzip -9n > build/$(DIST).tar.gz
	@echo build/$(DIST).tar.gz

# Debian packages of the commit that is checked out, the same bytes each time.  debian/ must stand at the top of the
# sources there.  Variables of this make and of the environment (DEBUG, PREFIX, LANG ...) must not reach the build.
.PHONY: deb
deb: deps-deb
	$(Q)rm -rf build/deb && mkdir -p build/deb
	$(Q)git archive --format=tar --prefix=$(DIST)/ HEAD | tar -x -C build/deb
	$(Q)cp -r build/deb/$(DIST)/packaging/debian build/deb/$(DIST)/debian
	$(Q)epoch=$$(git log -1 --format=%ct) && cd build/deb/$(DIST) && \
		env -i PATH="$$PATH" HOME="$$HOME" LC_ALL=C.UTF-8 SOURCE_DATE_EPOCH=$$epoch \
		dpkg-buildpackage -us -uc -b > ../log 2>&1 || { tail -n 40 ../log >&2; exit 1; }
	$(Q)rm -f build/*.deb && mv build/deb/*.deb build/
	@printf '%s\n' build/*.deb

# The same for RPM.  Debian's rpmbuild does not know what dpkg has installed.
.PHONY: rpm
rpm: deps-rpm dist
	$(Q)rm -rf build/rpm build/*.rpm && mkdir -p build/rpm
	$(Q)epoch=$$(git log -1 --format=%ct) && \
		env -i PATH="$$PATH" HOME="$$HOME" LC_ALL=C.UTF-8 SOURCE_DATE_EPOCH=$$epoch \
		rpmbuild -bb $(if $(wildcard /etc/debian_version),--nodeps) --define '_topdir $(CURDIR)/build/rpm' \
		--define '_sourcedir $(CURDIR)/build' --define '_buildhost reproducible' \
		--define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
		--define 'fastwrite_version $(VERSION)' packaging/rpm/libfastwrite.spec > build/rpm/log 2>&1 || \
		{ tail -n 40 build/rpm/log >&2; exit 1; }
	$(Q)mv build/rpm/RPMS/*/*.rpm build/
	@printf '%s\n' build/*.rpm

# ---- the rest ----

.PHONY: clean distclean help
clean:
	$(Q)rm -rf build build-debug build-asan build-tsan build-ubsan build-debug-asan build-debug-tsan \
		build-debug-ubsan build-glibc-* build-machine-* build-fuzz

distclean: clean
	$(Q)rm -rf .venv .pytest_cache .ruff_cache .hypothesis

help:
	@printf '%s\n' \
	'make              build/libfastwrite.so and build/fastwrite, with all processors; installs nothing' \
	'make test         unit tests, hook programs, command and laboratory tests; ends with the totals' \
	'make test-unit    the unit tests only; with SAN=asan|tsan|ubsan under that sanitizer' \
	'make fuzz         libFuzzer on arenas for FASTWRITE_FUZZ_SECONDS=60 in all (installs clang)' \
	'make soak         the long tests, an hour each by default: FASTWRITE_SOAK_SECONDS=N; alone: soak-differential,' \
	'                  soak-fuzz, soak-programs, soak-power, soak-surroundings' \
	'make soak-programs  real programs: databases, loggers, daemons, fio, stress-ng; ARGS="sqlite git" ...' \
	'make test-glibc   the hook programs with the C libraries of other Debian releases (downloads them)' \
	'make machines     the tests in emulated machines: other kernels, aarch64 (downloads them; hours)' \
	'make experiment   the published experiments, natively and with the library; ARGS="--scale full" ...' \
	'make apps         databases and loggers natively, with the library and with others; installs them' \
	'make bench        the timed comparisons' \
	'make bench-cost   of these, what a program pays that gains nothing: instructions, starts, forks, small files' \
	'make bench-sync   of these, what a synced write costs; SQLite, and PostgreSQL if it is there' \
	'make lint         formatting and static checks; make format repairs the formatting' \
	'make install      into PREFIX ($(PREFIX)), below DESTDIR; make uninstall takes it away again' \
	'make dist         the source of the commit that is checked out, as build/$(DIST).tar.gz' \
	'make deb          of that commit the Debian packages, as build/*.deb; make rpm the RPM packages' \
	'make deps         installs what build, tests and laboratory need, by apt and pip; deps-build, deps-lint likewise' \
	'make clean        removes what was built; distclean the Python parts too' \
	'' \
	'V=1 shows the commands, DEBUG=1 builds build-debug/ with kill steps, SAN=asan|tsan|ubsan build-SAN/.'

-include $(wildcard $(FUZZ_BUILD)/*.d $(FUZZ_BUILD)/obj/*/*.d $(BUILD)/obj/*/*.d $(BUILD)/tests/*.d $(BUILD)/tests/unit/*.d \
	$(BUILD)/tests/power/*.d $(BUILD)/tests/surroundings/*.d)
