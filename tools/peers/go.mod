module margay/tools/peers

go 1.26.0

require (
	github.com/tetratelabs/wazero v1.12.0
	margay v0.0.0
)

require (
	github.com/cilium/ebpf v0.22.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/time v0.12.0 // indirect
)

replace margay => ../..
