// What a Go program does to files, for the suite `golang`: `stress DIR CALLS` makes random calls in
// many goroutines and prints a digest of all results, which must be the same under Holdfast and
// without it; `lines FILE` appends lines and acknowledges each of them; `write FILE COUNT` writes and
// syncs, and tells the time of each.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const workers = 16

// A signal of those that queue up.
const realTime = syscall.Signal(40)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}

// deep runs work with frames below it, so that the stack has to grow.
func deep(frames int, work func()) {
	var room [512]byte
	room[frames%512] = 1
	if frames == 0 {
		work()
	} else {
		deep(frames-1, work)
	}
	runtime.KeepAlive(room)
}

type worker struct {
	random *rand.Rand
	digest interface{ Write([]byte) (int, error) }
	dir    string
	fds    [3]int
	calls  int
}

func (w *worker) note(what string, n int, err error) {
	errno := 0
	if e, is := err.(syscall.Errno); is {
		errno = int(e)
	}
	fmt.Fprintf(w.digest, "%s %d %d\n", what, n, errno)
	w.calls++
}

func (w *worker) name(at int) string { return filepath.Join(w.dir, fmt.Sprintf("f%d", at)) }

func (w *worker) open(at int, flags int) {
	if w.fds[at] >= 0 {
		w.note("close", 0, syscall.Close(w.fds[at]))
	}
	fd, err := syscall.Open(w.name(at), flags|syscall.O_RDWR|syscall.O_CLOEXEC, 0o644)
	w.note("open", 0, err)
	w.fds[at] = fd
	if err != nil {
		w.fds[at] = -1
	}
}

func (w *worker) step(beyond uintptr) {
	at := w.random.Intn(3)
	fd := w.fds[at]
	data := make([]byte, 1+w.random.Intn(9000))
	w.random.Read(data)
	offset := int64(w.random.Intn(40000))
	switch what := w.random.Intn(100); {
	case what < 30:
		n, err := syscall.Pwrite(fd, data, offset)
		w.note("pwrite", n, err)
	case what < 45:
		n, err := syscall.Pread(fd, data, offset)
		w.note("pread", n, err)
		if n > 0 {
			w.digest.Write(data[:n])
		}
	case what < 60:
		w.note("fsync", 0, syscall.Fsync(fd))
	case what < 65:
		w.note("fdatasync", 0, syscall.Fdatasync(fd))
	case what < 70:
		n, err := syscall.Write(fd, data)
		w.note("write", n, err)
	case what < 74:
		n, err := syscall.Seek(fd, offset, 0)
		w.note("seek", int(n), err)
	case what < 78:
		n, err := syscall.Read(fd, data)
		w.note("read", n, err)
	case what < 82:
		w.note("ftruncate", 0, syscall.Ftruncate(fd, offset))
	case what < 85:
		w.open(at, []int{0, syscall.O_CREAT, syscall.O_CREAT | syscall.O_APPEND, syscall.O_CREAT | syscall.O_TRUNC,
			syscall.O_CREAT | syscall.O_SYNC}[w.random.Intn(5)])
	case what < 87:
		w.note("rename", 0, syscall.Rename(w.name(at), w.name(w.random.Intn(3))))
	case what < 88:
		w.note("unlink", 0, syscall.Unlink(w.name(at)))
	case what < 90:
		var stat syscall.Stat_t
		err := syscall.Fstat(fd, &stat)
		w.note("fstat", int(stat.Size), err)
	case what < 92:
		n, err := syscall.Dup(fd)
		w.note("dup", 0, err)
		if err == nil {
			w.note("close", 0, syscall.Close(n))
		}
	case what < 94:
		// What cannot be read, and a number that is none.
		n, _, errno := syscall.Syscall6(syscall.SYS_PWRITE64, uintptr(fd), beyond-100, 4096, uintptr(offset), 0, 0)
		w.note("bad", int(n)*0, errno)
		_, _, errno = syscall.Syscall(4000, 1, 2, 3)
		w.note("none", 0, errno)
	case what < 96:
		w.note("fallocate", 0, syscall.Fallocate(fd, 0, offset, int64(len(data))))
	default:
		deep(w.random.Intn(60), func() {
			n, err := syscall.Pwrite(fd, data[:1+len(data)/8], offset)
			w.note("deep", n, err)
		})
	}
}

func (w *worker) run(calls int, beyond uintptr) {
	must(os.MkdirAll(w.dir, 0o755))
	for at := range w.fds {
		w.fds[at] = -1
		w.open(at, syscall.O_CREAT)
	}
	for w.calls < calls {
		w.step(beyond)
	}
	for at := range w.fds {
		if w.fds[at] >= 0 {
			w.note("close", 0, syscall.Close(w.fds[at]))
		}
		content, err := os.ReadFile(w.name(at))
		fmt.Fprintf(w.digest, "%v %x\n", err == nil, sha256.Sum256(content))
	}
}

// noise is what a Go program's runtime does meanwhile.
func noise(dir string, stop chan struct{}, done *sync.WaitGroup) {
	loop := func(pause time.Duration, work func()) {
		done.Add(1)
		go func() {
			defer done.Done()
			for {
				select {
				case <-stop:
					return
				case <-time.After(pause):
					work()
				}
			}
		}()
	}
	signals := make(chan os.Signal, 100)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGWINCH, realTime)
	loop(time.Millisecond, func() { must(syscall.Kill(os.Getpid(), syscall.SIGUSR1)) })
	loop(time.Millisecond, func() { must(syscall.Kill(os.Getpid(), realTime)) })
	loop(3*time.Millisecond, runtime.GC)
	// A thread that ends with its goroutine.
	loop(5*time.Millisecond, func() {
		done.Add(1)
		go func() {
			defer done.Done()
			runtime.LockOSThread()
			must(os.WriteFile(filepath.Join(dir, "ended"), []byte("thread"), 0o644))
		}()
	})
	loop(20*time.Millisecond, func() {
		out, err := exec.Command("/bin/sh", "-c", "echo child; exit 3").Output()
		if exit, is := err.(*exec.ExitError); !is || exit.ExitCode() != 3 || !bytes.Equal(out, []byte("child\n")) {
			must(fmt.Errorf("the child said %q, %v", out, err))
		}
	})
	loop(50*time.Millisecond, func() {
		// This very program.
		own, err := os.Executable()
		must(err)
		out, err := exec.Command(own, "say").Output()
		must(err)
		if string(out) != "said\n" {
			must(fmt.Errorf("this program said %q", out))
		}
		link, err := exec.Command("/proc/self/exe", "say").Output()
		if err != nil || string(link) != "said\n" {
			must(fmt.Errorf("by its link it said %q, %v", link, err))
		}
	})
	pipe, into, err := os.Pipe()
	must(err)
	loop(2*time.Millisecond, func() { into.Write([]byte("x")) })
	go func() {
		one := make([]byte, 1)
		for {
			pipe.Read(one)
		}
	}()
}

func stress(dir string, calls int) {
	// Of two pages the second cannot be accessed.
	pages, err := syscall.Mmap(-1, 0, 8192, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	must(err)
	must(syscall.Mprotect(pages[4096:], syscall.PROT_NONE))
	beyond := uintptr(unsafe.Pointer(&pages[0])) + 4096
	runtime.SetCPUProfileRate(5000)
	profile, err := os.Create(filepath.Join(dir, "profile"))
	must(err)
	pprof.StartCPUProfile(profile)
	stop := make(chan struct{})
	var others, all sync.WaitGroup
	noise(dir, stop, &others)
	digests := make([][]byte, workers)
	total := make([]int, workers)
	for at := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			if at%4 == 0 {
				runtime.LockOSThread()
			}
			digest := sha256.New()
			w := worker{random: rand.New(rand.NewSource(int64(at))), digest: digest, dir: filepath.Join(dir, fmt.Sprint(at))}
			w.run(calls/workers, beyond)
			digests[at], total[at] = digest.Sum(nil), w.calls
		}()
	}
	all.Wait()
	close(stop)
	others.Wait()
	pprof.StopCPUProfile()
	must(profile.Close())
	sum := 0
	for at, digest := range digests {
		fmt.Printf("%d %x\n", at, digest)
		sum += total[at]
	}
	fmt.Println("calls", sum)
}

func lines(path string) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	must(err)
	out := bufio.NewWriter(os.Stdout)
	for at := 0; ; at++ {
		_, err := fmt.Fprintf(file, "line %d\n", at)
		must(err)
		must(file.Sync())
		fmt.Fprintln(out, "ack", at)
		must(out.Flush())
	}
}

func write(path string, count int) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	must(err)
	data := make([]byte, 4096)
	_, err = file.WriteAt(make([]byte, 1<<20), 0)
	must(err)
	must(file.Sync())
	begun := time.Now()
	for at := range count {
		_, err := file.WriteAt(data, int64(at%256)*4096)
		must(err)
		must(file.Sync())
	}
	fmt.Println(time.Since(begun).Nanoseconds() / int64(count))
}

func main() {
	switch arguments := os.Args[1:]; arguments[0] {
	case "stress":
		calls, err := strconv.Atoi(arguments[2])
		must(err)
		stress(arguments[1], calls)
	case "lines":
		lines(arguments[1])
	case "write":
		count, err := strconv.Atoi(arguments[2])
		must(err)
		write(arguments[1], count)
	case "write-only":
		must(os.WriteFile(arguments[1], make([]byte, 1<<20), 0o644))
	case "run":
		command := exec.Command(arguments[1], arguments[2:]...)
		command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
		must(command.Run())
	case "say":
		fmt.Println("said")
	}
}
