package sandbox

import (
	"encoding/binary"
	"fmt"
)

// The guest runs two programs of our own: the controller as its first process
// and the launcher that turns into the job. Both are a few system calls, so
// they are assembled here: no file of the guest's root is trusted or needed.

// x86-64 Linux system calls that they use.
const (
	sysWrite     = 1
	sysOpen      = 2
	sysClose     = 3
	sysSigaction = 13
	sysPause     = 34
	sysExecve    = 59
	sysFcntl     = 72
	sysExitGroup = 231
)

// Registers in the order of system call arguments, as opcodes of
// "mov register, 64-bit immediate".
var argumentRegisters = [][]byte{{0x48, 0xbf}, {0x48, 0xbe}, {0x48, 0xba}, {0x49, 0xba}} // rdi rsi rdx r10

const (
	elfBase       = 0x400000
	elfHeaderSize = 64
	elfPhdrSize   = 56
	elfEntry      = elfHeaderSize + elfPhdrSize
)

// An operand is an argument of a system call in an assembly.
type operand interface{ isOperand() }

type (
	number  uint64   // itself
	address int      // of the data at this offset
	result  struct{} // of the system call before
)

func (number) isOperand()  {}
func (address) isOperand() {}
func (result) isOperand()  {}

// An assembly is a program under construction: code, then data.
type assembly struct {
	code, data []byte
	addresses  []int // offsets in code of 8-byte data offsets that become addresses
	failures   []int // offsets in code of 4-byte jump distances to the failure code
}

// bytes adds data and returns its address.
func (a *assembly) bytes(b []byte) address {
	off := len(a.data)
	a.data = append(a.data, b...)
	return address(off)
}

// cstring adds a NUL-terminated string.
func (a *assembly) cstring(s string) address { return a.bytes(append([]byte(s), 0)) }

// vector adds a NULL-terminated vector of pointers. The pointers are stored as
// data offsets until link adds the base.
func (a *assembly) vector(items []string) (vec address, pointers []int) {
	offsets := make([]address, len(items))
	for i, s := range items {
		offsets[i] = a.cstring(s)
	}
	a.data = append(a.data, make([]byte, -len(a.data)&7)...)
	vec = address(len(a.data))
	for _, off := range offsets {
		pointers = append(pointers, len(a.data))
		a.data = binary.LittleEndian.AppendUint64(a.data, uint64(off))
	}
	a.data = binary.LittleEndian.AppendUint64(a.data, 0)
	return vec, pointers
}

// call appends one system call; its result is in rax.
func (a *assembly) call(nr int, args ...operand) {
	for i, arg := range args {
		switch v := arg.(type) {
		case result:
			if i != 0 {
				panic("sandbox: only the first argument can be a result")
			}
			a.emit(0x48, 0x89, 0xc7) // mov rdi, rax
		case number:
			a.emit(argumentRegisters[i]...)
			a.code = binary.LittleEndian.AppendUint64(a.code, uint64(v))
		case address:
			a.emit(argumentRegisters[i]...)
			a.addresses = append(a.addresses, len(a.code))
			a.code = binary.LittleEndian.AppendUint64(a.code, uint64(v))
		}
	}
	a.emit(0xb8) // mov eax, nr
	a.code = binary.LittleEndian.AppendUint32(a.code, uint32(nr))
	a.emit(0x0f, 0x05) // syscall
}

func (a *assembly) emit(b ...byte) { a.code = append(a.code, b...) }

// failIfNegative jumps to the failure code if the last result is an error.
func (a *assembly) failIfNegative() {
	a.emit(0x48, 0x85, 0xc0, 0x0f, 0x88) // test rax, rax; js
	a.jumpToFailure()
}

// failUnless jumps to the failure code if the last result is another one.
func (a *assembly) failUnless(want int32) {
	a.emit(0x48, 0x3d) // cmp rax, want
	a.code = binary.LittleEndian.AppendUint32(a.code, uint32(want))
	a.emit(0x0f, 0x85) // jne
	a.jumpToFailure()
}

func (a *assembly) jumpToFailure() {
	a.failures = append(a.failures, len(a.code))
	a.emit(0, 0, 0, 0)
}

// failure marks where failed checks jump to: here.
func (a *assembly) failure() {
	for _, at := range a.failures {
		binary.LittleEndian.PutUint32(a.code[at:], uint32(len(a.code)-(at+4)))
	}
	a.failures = nil
}

// link returns the program as a static ELF executable of one segment, which is
// writable since the launcher stores an error number in it.
func (a *assembly) link(pointers ...int) []byte {
	if len(a.failures) > 0 {
		panic("sandbox: jump without a target")
	}
	code := append([]byte(nil), a.code...)
	code = append(code, make([]byte, -(elfEntry+len(code))&7)...)
	data := append([]byte(nil), a.data...)
	base := uint64(elfBase + elfEntry + len(code))
	for _, at := range a.addresses {
		binary.LittleEndian.PutUint64(code[at:], base+binary.LittleEndian.Uint64(code[at:]))
	}
	for _, at := range pointers {
		binary.LittleEndian.PutUint64(data[at:], base+binary.LittleEndian.Uint64(data[at:]))
	}
	image := elfHeaders(uint64(elfEntry + len(code) + len(data)))
	return append(append(image, code...), data...)
}

func elfHeaders(size uint64) []byte {
	le := binary.LittleEndian
	h := append([]byte("\x7fELF"), 2, 1, 1, 0) // 64 bit, little-endian, version 1, System V
	h = append(h, make([]byte, 8)...)
	h = le.AppendUint16(h, 2)  // executable
	h = le.AppendUint16(h, 62) // x86-64
	h = le.AppendUint32(h, 1)
	h = le.AppendUint64(h, elfBase+elfEntry)
	h = le.AppendUint64(h, elfHeaderSize) // program headers
	h = le.AppendUint64(h, 0)             // no sections
	h = le.AppendUint32(h, 0)
	for _, v := range []uint16{elfHeaderSize, elfPhdrSize, 1, 0, 0, 0} {
		h = le.AppendUint16(h, v)
	}
	h = le.AppendUint32(h, 1) // PT_LOAD
	h = le.AppendUint32(h, 7) // read, write, execute
	for _, v := range []uint64{0, elfBase, elfBase, size, size, 0x1000} {
		h = le.AppendUint64(h, v)
	}
	return h
}

const (
	controllerFailed = 126
	launcherFailed   = 127
	sigchld          = 17
	sigIgnore        = 1
	openWriteOnly    = 1
	fcntlSetFD       = 2
	closeOnExec      = 1
)

// ControllerReady is the byte that the controller writes to its standard
// output once the limit is set.
const ControllerReady = 'g'

// Controller returns the guest's first process: it writes value into file,
// reports ControllerReady on standard output, closes its descriptors and
// sleeps for ever. It ignores SIGCHLD, so orphans that it inherits vanish when
// they end. It exits with 126 if the write fails.
func Controller(file, value string) []byte {
	var a assembly
	name, val, ready := a.cstring(file), a.cstring(value), a.bytes([]byte{ControllerReady})
	a.data = append(a.data, make([]byte, -len(a.data)&7)...)
	action := a.bytes(binary.LittleEndian.AppendUint64(nil, sigIgnore))
	a.bytes(make([]byte, 3*8)) // flags, restorer, mask

	a.call(sysOpen, name, number(openWriteOnly), number(0))
	a.failIfNegative()
	a.call(sysWrite, result{}, val, number(len(value)))
	a.failUnless(int32(len(value)))
	a.call(sysSigaction, number(sigchld), action, number(0), number(8))
	a.failIfNegative()
	a.call(sysWrite, number(1), ready, number(1))
	a.failUnless(1)
	for fd := range 4 { // the fourth is file
		a.call(sysClose, number(fd))
	}
	sleep := len(a.code)
	a.call(sysPause)
	a.emit(0xeb, byte(sleep-(len(a.code)+2))) // jmp sleep
	a.failure()
	a.call(sysExitGroup, number(controllerFailed))
	return a.link()
}

// LauncherStatusFD is the descriptor on which the launcher reports that the
// job could not be executed: 8 bytes, the negative error number in
// little-endian order. It is closed without a byte when the job runs.
const LauncherStatusFD = 3

// MaxLauncherBytes bounds what Launcher builds: the protocol allows 128 KiB of
// strings and pointers.
const MaxLauncherBytes = 256 << 10

// Launcher returns a program that closes its standard input and becomes path
// with exactly the given arguments and environment: a runtime's own way of
// starting a process adds HOME and keeps standard input open.
func Launcher(path string, argv, env []string) ([]byte, error) {
	var a assembly
	name := a.cstring(path)
	args, argPointers := a.vector(argv)
	envs, envPointers := a.vector(env)
	status := a.bytes(make([]byte, 8))

	a.call(sysClose, number(0))
	a.call(sysFcntl, number(LauncherStatusFD), number(fcntlSetFD), number(closeOnExec))
	a.call(sysExecve, name, args, envs)
	a.emit(0x48, 0xa3) // mov [status], rax
	a.addresses = append(a.addresses, len(a.code))
	a.code = binary.LittleEndian.AppendUint64(a.code, uint64(status))
	a.call(sysWrite, number(LauncherStatusFD), status, number(8))
	a.call(sysExitGroup, number(launcherFailed))
	image := a.link(append(argPointers, envPointers...)...)
	if len(image) > MaxLauncherBytes {
		return nil, fmt.Errorf("arguments and environment of %s: %d bytes, at most %d", path, len(image), MaxLauncherBytes)
	}
	return image, nil
}
