// What the Go programs share: workers side by side, and the size that the program is asked for.
package main

import (
	"os"
	"strconv"
	"sync"
)

// each gives what `work` makes of each worker's number and the first argument, in the order of the numbers.
func each[R any](workers int, work func(worker, size int) R) []R {
	size, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	var all sync.WaitGroup
	made := make([]R, workers)
	for worker := range made {
		all.Add(1)
		go func(worker int) {
			defer all.Done()
			made[worker] = work(worker, size)
		}(worker)
	}
	all.Wait()
	return made
}
