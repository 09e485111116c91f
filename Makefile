# Every target installs what it needs where it may (Debian, as root) and says what is missing
# where it may not. `make help` lists the targets.

SHELL := /bin/bash
CARGO ?= cargo
PREFIX ?= /usr/local
# How the command is built: WITH=--no-default-features leaves out https, and with it registries on other hosts, and Ceph.
WITH ?=
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
EXTANT := $(TARGET)/release/extant
# Optimised as a whole: what is installed and measured.
WHOLE := $(TARGET)/dist/extant
DOCUMENTS := $(PREFIX)/share/doc/extant
# The tree that `make demo` packs.
DEMO_SOURCE ?= /usr/share/doc
FUZZ_SECONDS ?= 30
# What `make dist` builds for, and how.
DIST_MUSL := $(shell uname -m)-unknown-linux-musl
DIST_TARGET ?= $(if $(and $(shell rustup target list --installed 2>/dev/null | grep -x $(DIST_MUSL)),$(shell command -v musl-gcc)),$(DIST_MUSL),$(shell uname -m)-unknown-linux-gnu)
DIST_PROFILE ?= dist
DIST_FLAGS ?= -C target-feature=+crt-static
# A test program that hangs is ended after a quarter of an hour.
ENDED = --config "target.'cfg(all())'.runner='$(abspath scripts/test-runner)'"

.PHONY: help build build-whole demo embed test test-long test-mutants test-programs posix install-capi python test-python bench bench-build bench-mkfs bench-check bench-read bench-namespace bench-io bench-io-memory bench-async bench-alloc bench-pieces bench-age bench-direct bench-crypt bench-fio bench-mount bench-remote bench-python bench-quick bench-page counts install fuzz-smoke fuzz-long fmt lint doc dist package install-files

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## the command, optimised: target/release/extant
	@scripts/deps cargo
	$(CARGO) build --release -p extant-cli $(WITH)

build-whole: ## the command as it is installed, optimised as a whole and stripped: target/dist/extant
	@scripts/deps cargo
	$(CARGO) build --profile dist -p extant-cli $(WITH)

demo: build ## an image of a real tree as an ordinary user, checked and shown
	@scripts/deps e2fsprogs || true
	@EXTANT=$(EXTANT) scripts/demo $(DEMO_SOURCE)

test: ## all tests
	@scripts/deps cargo e2fsprogs acl attr libcap zstd tar
	@scripts/deps python3 fuse3 git umoci skopeo docker-registry apache2-utils cryptsetup-bin dosfstools mtools gdisk fdisk xfsprogs fsverity valgrind || true
	$(CARGO) $(ENDED) test --workspace --no-fail-fast
	@$(MAKE) --no-print-directory embed

embed: ## a program that embeds the library, from outside of the workspace
	@scripts/deps cargo
	$(CARGO) run --manifest-path examples/embed/Cargo.toml --target-dir $(abspath $(TARGET)) --locked

test-long: build ## all tests and those that take minutes, and real programs on a mount
	@scripts/deps cargo e2fsprogs acl attr libcap zstd tar
	@scripts/deps umoci skopeo docker-registry apache2-utils cryptsetup-bin dosfstools mtools gdisk fdisk qemu-system-x86 busybox-static xfsprogs fsverity \
	  ceph-mon ceph-osd ceph-mgr ceph-common fio || true
	$(CARGO) test --workspace --release --no-fail-fast -- --include-ignored
	@scripts/deps python3 fuse3 git rsync fio stress-ng postgresql || true
	EXTANT=$(EXTANT) scripts/real-programs

test-mutants: ## each mistake of docs/mutations.md is made, and its test must fail (MUTANTS="jbd2.")
	@scripts/deps cargo e2fsprogs acl attr libcap zstd tar python3
	@scripts/deps fuse3 || true
	scripts/test-mutants $(MUTANTS)

test-programs: build ## real programs on a mount, each also with the server killed (PROGRAMS="git tar")
	@scripts/deps e2fsprogs acl attr libcap tar python3 fuse3 git rsync fio stress-ng postgresql || true
	EXTANT=$(EXTANT) scripts/real-programs $(PROGRAMS)

posix: build ## system calls on a mount and on the kernel's ext4, side by side (root; FUSE2FS=1 KEEP=DIR)
	@scripts/deps e2fsprogs perl
	EXTANT=$(EXTANT) scripts/posix-suite

bench: ## all benchmarks, and the page of them; what cannot run here is named at the end, and the others go on
	scripts/bench-all build mkfs check read namespace io fio async alloc pieces age direct crypt mount remote python

# Small files and one or two rounds: to see that everything runs and where things stand, not to quote.
bench-quick: build-whole ## all benchmarks, small, in less than five minutes, and the page of them
	@scripts/deps e2fsprogs fio python3 || true
	@scripts/deps xfsprogs erofs-utils genext2fs umoci fuse2fs fuse3 tar || true
	$(CARGO) build --profile dist -p extant-bench -p extant-fio
	EXTANT=$(WHOLE) ENGINE=$(abspath $(TARGET))/dist/libextant_fio.so BENCH=$(TARGET)/dist/extant-bench scripts/bench-quick
	$(TARGET)/dist/extant-bench page

bench-page: ## the page of what the benchmarks have measured: bench/report/index.html (PAGE_DIR=)
	$(CARGO) run --profile dist -q -p extant-bench -- page

bench-build: build-whole ## build against mke2fs -d, mkfs.erofs, tar -x, umoci and floors (SOURCE=/usr/share RUNS=5)
	@scripts/deps e2fsprogs
	@scripts/deps erofs-utils genext2fs umoci || true
	EXTANT=$(WHOLE) $(CARGO) run --profile dist -q -p extant-bench -- build

bench-mkfs: build-whole ## time and memory of making a file system of 16 TiB
	@scripts/deps e2fsprogs
	EXTANT=$(WHOLE) $(CARGO) run --profile dist -q -p extant-bench -- mkfs

bench-check: build-whole ## checking images against e2fsck -fn and pread: time and memory (RUNS=5 FILES=55000,1000000 SIZE=16T)
	@scripts/deps e2fsprogs
	EXTANT=$(WHOLE) $(CARGO) run --profile dist -q -p extant-bench -- check

bench-remote: build-whole ## qcow2 against raw, NBD against fio, a store 20 ms away, 200 overlays (RUNS=5 SOURCE=/etc STORE_MIB=2048 MOUNTS=200 PARTS=)
	@scripts/deps e2fsprogs
	@scripts/deps nbdkit fio || true
	EXTANT=$(WHOLE) $(CARGO) run --profile dist -q -p extant-bench -- remote

bench-read: build-whole ## reading through the library against pread; walks; memory
	EXTANT=$(WHOLE) $(CARGO) run --profile dist -q -p extant-bench -- read

bench-namespace: ## create, remove, rename, stat in process against the kernel's ext4 (root; RUNS=5 DIVIDE=1, a part of the operations)
	@scripts/deps e2fsprogs
	$(CARGO) run --profile dist -q -p extant-bench -- namespace

bench-io: ## contents of files against the kernel's ext4 and XFS and memcpy (root; ROWS= ROUNDS= SIZE=)
	@scripts/deps e2fsprogs
	@scripts/deps xfsprogs || true
	@# The plain memory that is copied lies in huge pages, as good as the kernel's own.
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(CARGO) run --profile dist -q -p extant-bench -- io

bench-async: ## small writes through a ring against the call that waits and the kernel (root; ROUNDS= SIZE= ROWS=)
	$(CARGO) run --profile dist -q -p extant-bench -- async

bench-io-memory: ## memory of ten minutes with four times as much data as cache (MINUTES=)
	@scripts/deps e2fsprogs
	$(CARGO) run --profile dist -q -p extant-bench -- io-memory --minutes $(or $(MINUTES),10)

bench-alloc: ## space for files that grow, 1 to 64 workers, in process against the kernel's ext4 and XFS (root; ROUNDS= WORKERS= SECONDS_EACH= TARGETS=)
	@scripts/deps e2fsprogs
	@scripts/deps xfsprogs || true
	$(CARGO) run --profile dist -q -p extant-bench -- alloc

bench-pieces: ## pieces of 64 files that grow side by side, in process against the kernel's ext4 and XFS (root; ROUNDS= WORKERS= ROWS=appends,synced APPEND_BYTES= SYNCED_BYTES= SIZE= TARGETS=)
	@scripts/deps e2fsprogs
	@scripts/deps xfsprogs || true
	$(CARGO) run --profile dist -q -p extant-bench -- pieces

bench-age: ## a file system filled and churned, in process and by the kernel's ext4: pieces, free runs, speed (root; ROUNDS= FULL=90 TIMES= SIZE=2G SEED= TARGETS=)
	@scripts/deps e2fsprogs
	$(CARGO) run --profile dist -q -p extant-bench -- age

bench-direct: ## direct I/O, one request and 64 at once, against fio on the raw target and on the kernel's ext4 (root; SIZE= ROUNDS= SECONDS_EACH= ROWS="disk write;4K" BENCH_DISK=)
	@scripts/deps e2fsprogs
	$(CARGO) run --profile dist -q -p extant-bench -- direct

bench-crypt: ## what encryption costs files that are read and written, against plain ones and the ciphers alone (ROUNDS= SIZE= ROWS=)
	@scripts/deps e2fsprogs
	$(CARGO) run --profile dist -q -p extant-bench -- crypt

bench-fio: build-whole ## fio itself on the kernel's ext4 and XFS and on extant in process, under 4 minutes (root; ROWS= ROUNDS= SECONDS_EACH= RAMP= SIZE= JSON=)
	@scripts/deps e2fsprogs fio python3
	@scripts/deps xfsprogs || true
	$(CARGO) build --profile dist -p extant-fio
	EXTANT=$(WHOLE) ENGINE=$(abspath $(TARGET))/dist/libextant_fio.so scripts/bench-fio

counts: ## instructions of hot paths under valgrind against those stored (BLESS=1 stores them), or AGAINST=COMMIT
	@scripts/deps cargo valgrind python3
	scripts/counts $(if $(BLESS),--bless) $(if $(AGAINST),--against $(AGAINST))

bench-mount: build-whole ## mounts against the kernel's ext4 and fuse2fs (root; ROWS= ROUNDS= SIZE= FILES=)
	@scripts/deps e2fsprogs tar
	@scripts/deps fuse2fs fuse3 || true
	EXTANT=$(WHOLE) $(CARGO) run --profile dist -q -p extant-bench -- mount

dist: ## a static command as .deb and .tar.gz, with all that belongs to it: target/dist
	@scripts/deps cargo
	@# musl where Rust and the C compiler have it, else glibc, linked in: nothing is looked up at run time.
	RUSTFLAGS="$(DIST_FLAGS)" $(CARGO) build --profile $(DIST_PROFILE) --target $(DIST_TARGET) -p extant-cli $(WITH)
	@scripts/dist $(TARGET)/$(DIST_TARGET)/$(DIST_PROFILE)/extant $(TARGET)/dist

package: ## the crates as they would be published: target/package
	@scripts/deps cargo
	@# Without lock files: those name the crates among each other, which no registry has yet.
	$(CARGO) package --workspace --no-verify --exclude-lockfile --exclude xtask --exclude extant-bench --exclude extant-posix \
	  --exclude extant-testkit --exclude extant-python

install: build-whole ## command, mount helpers, manual pages, completions, documents (PREFIX, DESTDIR)
	@$(MAKE) --no-print-directory install-files EXTANT=$(WHOLE)

install-files:
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man8 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	  $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d \
	  $(DESTDIR)$(DOCUMENTS)/design
	install -m 755 $(EXTANT) $(DESTDIR)$(PREFIX)/bin/extant
	@# mount -t fuse.extant looks for these in /sbin: PREFIX=/usr puts them there.
	ln -sf ../bin/extant $(DESTDIR)$(PREFIX)/sbin/mount.fuse.extant
	ln -sf ../bin/extant $(DESTDIR)$(PREFIX)/sbin/umount.fuse.extant
	@# Messages and manual pages point to these.
	install -m 644 CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs/*.md $(DESTDIR)$(DOCUMENTS)
	install -m 644 docs/design/*.md $(DESTDIR)$(DOCUMENTS)/design
	$(EXTANT) man --documents $(DOCUMENTS) $(DESTDIR)$(PREFIX)/share/man/man1
	mv $(DESTDIR)$(PREFIX)/share/man/man1/*.8 $(DESTDIR)$(PREFIX)/share/man/man8
	$(EXTANT) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/extant
	$(EXTANT) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_extant
	$(EXTANT) completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/extant.fish

# What programs ask for at run time: as crates/extant-capi/build.rs says.
CAPI_VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
CAPI_SONAME := libextant.so.0.$(word 2,$(subst ., ,$(CAPI_VERSION)))

install-capi: ## libextant for C and C++: header, shared and static library, pkg-config (PREFIX, DESTDIR)
	@scripts/deps cargo
	$(CARGO) build --profile dist -p extant-capi
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(DOCUMENTS)
	install -m 644 crates/extant-capi/include/extant.h $(DESTDIR)$(PREFIX)/include
	install -m 644 docs/c-api.md $(DESTDIR)$(DOCUMENTS)
	install -m 755 $(TARGET)/dist/libextant_capi.so $(DESTDIR)$(PREFIX)/lib/$(CAPI_SONAME)
	ln -sf $(CAPI_SONAME) $(DESTDIR)$(PREFIX)/lib/libextant.so
	install -m 644 $(TARGET)/dist/libextant_capi.a $(DESTDIR)$(PREFIX)/lib/libextant.a
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(CAPI_VERSION)|' crates/extant-capi/extant.pc.in \
	  > $(DESTDIR)$(PREFIX)/lib/pkgconfig/extant.pc

PYTHON ?= python3
WHEELS := $(abspath $(TARGET))/wheels
VENV := $(abspath $(TARGET))/venv
# Built in an environment of its own, from PyPI: nothing is installed into the system's Python.
MATURIN := $(VENV)/build/bin/maturin

$(MATURIN):
	@scripts/deps python3
	$(PYTHON) -m venv $(VENV)/build
	$(VENV)/build/bin/pip install -q 'maturin>=1.16,<2'

python: $(MATURIN) ## the wheel of the Python package: target/wheels
	@scripts/deps cargo
	cd crates/extant-python && $(MATURIN) build --profile dist --target-dir $(abspath $(TARGET)) -o $(WHEELS)

bench-python: build-whole python ## Python against the library and the command (RUNS=5 FILES=55000 SOURCE=)
	$(PYTHON) -m venv --clear $(VENV)/bench
	$(VENV)/bench/bin/pip install -q --no-index $(WHEELS)/extant-*.whl
	EXTANT=$(WHOLE) PYTHON=$(VENV)/bench/bin/python $(CARGO) run --profile dist -q -p extant-bench -- python

test-python: $(MATURIN) ## tests of the Python package, as it is installed, in a fresh environment
	@scripts/deps cargo e2fsprogs
	rm -rf $(VENV)/test $(VENV)/wheels
	cd crates/extant-python && $(MATURIN) build --profile dev --target-dir $(abspath $(TARGET)) -o $(VENV)/wheels
	$(PYTHON) -m venv $(VENV)/test
	$(VENV)/test/bin/pip install -q pytest mypy $(VENV)/wheels/extant-*.whl 'fsspec>=2024.2'
	cd $(VENV) && test/bin/python -m pytest -q -p no:cacheprovider $(CURDIR)/crates/extant-python/tests
	cd $(VENV) && test/bin/mypy --strict --warn-unused-ignores $(CURDIR)/crates/extant-python/tests/typed.py
	cd $(VENV) && test/bin/python -m mypy.stubtest extant --concise \
	  --mypy-config-file $(CURDIR)/crates/extant-python/tests/mypy.ini \
	  --allowlist $(CURDIR)/crates/extant-python/tests/stubtest-allow.txt

fuzz-smoke: ## each fuzz target for 30 s
	@scripts/deps cargo cargo-fuzz
	scripts/fuzz $(FUZZ_SECONDS)

fuzz-long: ## each fuzz target for 10 minutes
	@scripts/deps cargo cargo-fuzz
	scripts/fuzz 600

fmt: ## formats the source
	$(CARGO) fmt --all

lint: ## formatting, clippy, documentation, and the project's own rules
	@scripts/deps cargo
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	$(CARGO) run -q -p xtask -- tidy

doc: ## the API documentation
	$(CARGO) doc --workspace --no-deps
