# make demo   see the whole product work
# make test   every check that CI runs
# make soak   the checks that take hours; FUZZTIME=1m shortens them, SOAK=cosign selects
# make bench  how it performs, as ratios to plainer ways (docs/performance.md)
# make build  bin/underwrite, static, with gVisor inside

GO ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

# gVisor re-executes the binary in an empty root: it must be static. The flags
# stay constant, since changing them recompiles all of gVisor.
export CGO_ENABLED = 0
export GOFLAGS = -mod=readonly -buildvcs=false

.PHONY: build demo bench test soak deps check unit race clean

build: bin/underwrite

.PHONY: bin/underwrite
bin/underwrite:
	@$(GO) version >/dev/null 2>&1 || { echo "make: Go 1.26 or newer is not installed: see https://go.dev/dl/" >&2; exit 2; }
	$(GO) build -ldflags '-s -w' -o $@ ./app

demo: deps build
	bin/underwrite demo

bench: build
	$(GO) run ./app/bench -binary bin/underwrite
	$(GO) test -run '^$$' -bench 'VerifyPair' -cpu 1 ./attest
	$(GO) test -run '^$$' -bench 'Tree|Intake|LargeFreeze' -benchtime 10x ./attest/gittree ./store ./handlers/freeze

test: deps check unit race

# SOAK names parts of .ci/soak; all of them run if it is empty.
soak: deps
	.ci/soak $(SOAK)

# Installs what the demo and the tests need on Debian, or says what is missing.
deps:
	@.ci/deps

check:
	@test -z "$$(gofmt -l .)" || { echo "not formatted by gofmt:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags soak ./app/apptest
	$(GO) run $(STATICCHECK) ./...

unit:
	$(GO) test -timeout 30m ./...

# The race detector needs cgo; packages that link gVisor are left out.
race:
	CGO_ENABLED=1 $(GO) test -race -timeout 15m $$(.ci/race-packages)

clean:
	rm -rf bin
