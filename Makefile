# Margay. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# The compiled extensions are made by ext/Makefile alone, whatever times a checkout gave to files.
MAKEFLAGS += --no-builtin-rules

# Paths and commits of the checkout stay out of what Go compiles and links, so every step, and other checkouts, can use what one
# has made. VERSION names the commit.
export GOFLAGS := -trimpath -buildvcs=false

ifndef VERSION
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
endif
VERSION_FLAG := -X main.version=$(VERSION)
GOFLAGS_STRIPPED := -ldflags '-s -w $(VERSION_FLAG)'
GO_STATIC := CGO_ENABLED=0 go
ifeq ($(origin CC),default)
CC := gcc
endif
CFLAGS := -O2 -g -Wall -Wextra -Werror

# Packages whose tests run for arm64 under an emulator of the processor.
ARM64_PACKAGES := ./nimble/... ./kernel/abi/... ./kernel/klog ./cluster/control ./examples/histogram/words

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what building, running and testing need, after saying what that is
	@tools/deps run test

.PHONY: deps-run
deps-run:
	@tools/deps run

.PHONY: build
build: bin/margay bin/margayd bin/nodekernel bin/jobinit bin/libmargay.a bin/margay-fi.so bin/hello bin/hello-c bin/histogram bin/histogram-c bin/plain bin/offload bin/offload-c bin/stencil bin/farm bin/glunix bin/latency bin/fabric bin/fabric-sockets ## build everything into bin/

.PHONY: run
run: deps-run build ## boot a machine of 4 virtual nodes, run the histogram on it, print it, and end the machine
	@examples/histogram/demo

.PHONY: test
test: deps build ## run every test, those that boot virtual machines included
	@$(GO_STATIC) run ./tools/suite $(ARM64_PACKAGES)

.PHONY: test-quick
test-quick: build ## run the tests that need no virtual machine and no machine of Margay, for daily work
	@go test $$(go list ./... | grep -v -e /testsuite/e2e -e /testsuite/guest$$)

.PHONY: soak
soak: deps build ## repeat random and long tests until the time in MARGAY_SOAK (default 5m) is over
	@tools/soak

.PHONY: netboot
netboot: deps build ## boot virtual nodes from their network card by a BIOS, UEFI PXE and UEFI HTTP boot, one from a disk, and one with cards of real machines, and give them another image
	@$(GO_STATIC) test -tags soak -count=1 -timeout 60m -v -run '^(TestNetboot|TestFirmware|TestSoakDisk|TestSoakDrivers|TestSoakCardFirmware|TestSoakUpdateFirmware|TestSoakUpdateMetal)$$' ./testsuite/e2e

.PHONY: check
check: deps ## format, vet, staticcheck, prose, generated files, go.mod, cross-build
	@tools/check

.PHONY: bench
bench: ## run the benchmarks of the packages
	go test -run '^$$' -bench . ./nimble/... ./kernel/... ./qemu/... ./ext/...

.PHONY: bench-nimble
bench-nimble: bin/peers ## measure the engines of extensions beside wazero and the Linux kernel; writes bin/bench-nimble.json and .md
	@bin/peers -json bin/bench-nimble.json -markdown bin/bench-nimble.md

.PHONY: bench-sched
bench-sched: deps-run build ## measure how fast messages reach their handlers, and what a switch costs, on hosted and on virtual nodes
	@bin/margay bench sched

.PHONY: bench-fabric
bench-fabric: ## measure messages beside MPICH, Open MPI and sockets, all in one run, and write the figures into docs/fabric.md
	@tools/deps run bench
	@$(MAKE) --no-print-directory build
	@bin/margay bench fabric --into docs/fabric.md

.PHONY: bench-launch
bench-launch: ## measure launches on up to 1,000 nodes beside MPICH, pdsh and Slurm, all in one run, and write the figures into docs/launch.md (25 minutes)
	@tools/deps run launch
	@$(MAKE) --no-print-directory build
	@bin/margay bench launch --nodes 1,8,64,256,1000 --rounds 8,8,8,3,3 --sizes 12 --jobs 100 --into docs/launch.md

.PHONY: scale
scale: ## simulate jobs on up to a million nodes, and write the figures into docs/scale.md and docs/scale.svg (20 s of a processor)
	go run ./testsuite/sim/scale --docs docs

.PHONY: generate
generate: ## make the generated files anew: the control protocol, handlers of an engine, tables, the compiled extensions
	go generate ./cluster/control ./nimble/engine/direct
	go run ./tools/slots >ext/SLOTS.md
	go run ./tools/features >docs/features.md
	$(MAKE) -C ext
	$(MAKE) -C kernel/sched/schedext
	$(MAKE) -C kernel/border
	$(MAKE) -C nimble/object/testdata
	$(MAKE) -C kernel/sched/schedtest/testdata

PREFIX ?= /usr/local
BINDIR = $(DESTDIR)$(PREFIX)/bin
SHAREDIR = $(DESTDIR)$(PREFIX)/share

.PHONY: install
install: bin/margay bin/margayd bin/nodekernel bin/jobinit bin/libmargay.a bin/margay-fi.so ## install commands, library, headers, manual pages and completions below PREFIX (and DESTDIR)
	install -d $(BINDIR) $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include/margay/ext $(SHAREDIR)/man/man1 \
		$(SHAREDIR)/bash-completion/completions $(SHAREDIR)/zsh/site-functions $(SHAREDIR)/fish/vendor_completions.d
	install -m 755 bin/margay bin/margayd bin/nodekernel bin/jobinit $(BINDIR)
	ln -sf margay $(BINDIR)/yod
	ln -sf margay $(BINDIR)/glurun
	install -m 644 bin/libmargay.a $(DESTDIR)$(PREFIX)/lib
	install -m 755 -D bin/margay-fi.so $(DESTDIR)$(PREFIX)/lib/libfabric/margay-fi.so
	install -m 644 lib/c/margay.h lib/c/glunix.h $(DESTDIR)$(PREFIX)/include
	install -m 644 kernel/abi/slot/*.h $(DESTDIR)$(PREFIX)/include/margay/ext
	rm -f $(SHAREDIR)/man/man1/margay.1 $(SHAREDIR)/man/man1/margay-*.1
	bin/margay man $(SHAREDIR)/man/man1
	bin/margay completion bash >$(SHAREDIR)/bash-completion/completions/margay
	bin/margay completion zsh >$(SHAREDIR)/zsh/site-functions/_margay
	bin/margay completion fish >$(SHAREDIR)/fish/vendor_completions.d/margay.fish

.PHONY: deb
deb: ## make bin/margay.deb, a Debian package of the same
	tools/deb/build bin/margay.deb

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

# The Go toolchain knows best what is up to date.
.PHONY: FORCE
FORCE:

# Debuggers look for the symbols of MPIR and their types, so it is not stripped. It begins at margay_start, which is
# in assembly: a closed standard output is an error of writing then.
bin/margay: FORCE
	@$(GO_STATIC) build -ldflags '$(VERSION_FLAG) -E margay_start' -o $@ ./tools/margay

bin/margayd: FORCE
	@$(GO_STATIC) build $(GOFLAGS_STRIPPED) -o $@ ./tools/margayd

bin/nodekernel: FORCE
	@$(GO_STATIC) build $(GOFLAGS_STRIPPED) -o $@ ./tools/nodekernel

bin/jobinit: FORCE
	@$(GO_STATIC) build $(GOFLAGS_STRIPPED) -o $@ ./tools/jobinit

bin/peers: FORCE
	@$(GO_STATIC) build -C tools/peers -o $(CURDIR)/$@ .

bin/hello: FORCE
	@$(GO_STATIC) build -o $@ ./examples/hello/go

bin/histogram: FORCE
	@$(GO_STATIC) build -o $@ ./examples/histogram/go

bin/offload: FORCE
	@$(GO_STATIC) build -o $@ ./examples/offload/go

bin/farm: FORCE
	@$(GO_STATIC) build -o $@ ./examples/farm

bin/plain: FORCE
	@$(GO_STATIC) build -o $@ ./examples/histogram/plain

bin/margay.o bin/collective.o bin/group.o bin/window.o bin/commit.o bin/glunix.o: bin/%.o: lib/c/%.c lib/c/margay.h lib/c/glunix.h lib/c/internal.h lib/c/steps.h lib/c/channel.h lib/c/piece.h lib/c/far.h lib/c/barrier.h lib/c/direct.h lib/c/serve.h lib/c/trip.h lib/c/pace.h kernel/abi/wire/wire.h kernel/abi/mirror/mirror.h kernel/abi/onesided/onesided.h
	@mkdir -p bin
	$(CC) $(CFLAGS) -I kernel/abi/wire -I kernel/abi/mirror -I kernel/abi/onesided -c $< -o $@

bin/libmargay.a: bin/margay.o bin/collective.o bin/group.o bin/window.o bin/commit.o bin/glunix.o
	rm -f $@
	$(AR) rcs $@ $^

# The provider of libfabric has the library in it, and shows none of its names. libfabric looks for names that end in -fi.so.
# It goes to nodes by its content, so that is the same in each checkout.
bin/margay-fi.so: $(addprefix lib/ofi/,provider.c endpoint.c onesided.c region.c atomic.c queue.c vector.c engine.c rma.c) $(addprefix lib/c/,margay.c collective.c group.c window.c commit.c) $(wildcard lib/ofi/*.h lib/c/*.h kernel/abi/*/*.h)
	@mkdir -p bin
	$(CC) $(CFLAGS) -ffile-prefix-map=$(CURDIR)=. -shared -fPIC -fvisibility=hidden -Wl,-z,defs -I lib/c -I kernel/abi/wire -I kernel/abi/mirror -I kernel/abi/onesided $(filter %.c,$^) -lfabric -o $@

bin/hello-c: examples/hello/c/hello.c
	@mkdir -p bin
	$(CC) $(CFLAGS) -static $< -o $@

bin/histogram-c: examples/histogram/c/histogram.c lib/c/margay.h bin/libmargay.a ext/message/accumulate/accumulate.o
	$(CC) $(CFLAGS) -static -I lib/c -DACCUMULATE='"ext/message/accumulate/accumulate.o"' $< bin/libmargay.a -o $@

bin/offload-c: examples/offload/c/offload.c lib/c/margay.h bin/libmargay.a ext/message/allreduce/allreduce.o
	$(CC) $(CFLAGS) -static -I lib/c $< bin/libmargay.a -o $@

bin/stencil: examples/stencil/stencil.c lib/c/margay.h bin/libmargay.a
	$(CC) $(CFLAGS) -static -I lib/c $< bin/libmargay.a -lm -o $@

bin/glunix: examples/glunix/glunix.c lib/c/glunix.h bin/libmargay.a
	$(CC) $(CFLAGS) -static -I lib/c $< bin/libmargay.a -o $@

bin/latency: examples/latency/latency.c lib/c/margay.h bin/libmargay.a ext/message/stamp/stamp.o ext/sched/messagefirst/messagefirst.o ext/sched/roundrobin/roundrobin.o
	$(CC) $(CFLAGS) -static -I lib/c $< bin/libmargay.a -o $@

FABRIC := tools/margay/bench/peer/programs

bin/fabric: $(FABRIC)/measure.c $(FABRIC)/margay.c $(FABRIC)/measure.h lib/c/margay.h bin/libmargay.a
	$(CC) $(CFLAGS) -static -I lib/c $(filter %.c,$^) bin/libmargay.a -o $@

bin/fabric-sockets: $(FABRIC)/measure.c $(FABRIC)/sockets.c $(FABRIC)/measure.h
	@mkdir -p bin
	$(CC) $(CFLAGS) -static $(filter %.c,$^) -o $@
