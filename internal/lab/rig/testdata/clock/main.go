// Command clock prints how far the program's wall clock is off the kernel's, and how
// long a monotonic and a timer's 20 ms are, in nanoseconds.
package main

import (
	"fmt"
	"syscall"
	"time"
)

func main() {
	var kernel syscall.Timeval
	if err := syscall.Gettimeofday(&kernel); err != nil {
		panic(err)
	}
	start := time.Now()
	<-time.After(20 * time.Millisecond)
	fmt.Println(start.UnixNano()-kernel.Nano(), int64(time.Since(start)), int64(time.Until(start.Add(time.Hour))))
}
