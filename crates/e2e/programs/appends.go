// The same as appends.c, by Go's own system calls.
package main

import (
	"fmt"
	"os"
	"strconv"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	file, err := os.OpenFile(os.Args[1], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	must(err)
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	for number := 0; number < count; number++ {
		_, err = fmt.Fprintf(file, "%09d\n", number)
		must(err)
		must(file.Sync())
		fmt.Println("ack", number)
	}
}
