// Writes 1,000 bytes d over the beginning of a file and syncs it: an ordinary Go program,
// dynamically linked because it uses C, whose file calls are made by Go's runtime.
package main

// #include <unistd.h>
import "C"

import (
	"bytes"
	"fmt"
	"os"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	file, err := os.OpenFile(os.Args[1], os.O_RDWR, 0)
	must(err)
	_, err = file.WriteAt(bytes.Repeat([]byte("d"), 1000), 0)
	must(err)
	must(file.Sync())
	fmt.Println("written by", C.getpid() > 0)
}
