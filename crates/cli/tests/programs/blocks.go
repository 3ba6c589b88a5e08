// Go with C in it: what the runtime takes by libc's mmap it drops by madvise instructions of its own. Blocks of many
// sizes live for some rounds; each is zero when it is new, and holds what was written to it when it goes.
package main

// static unsigned mix(unsigned x) { x ^= x >> 16; x *= 0x45d9f3bu; return x ^ (x >> 16); }
import "C"

import (
	"fmt"
	"runtime/debug"
)

type block struct {
	seed  uint32
	bytes []byte
}

func (b block) at(index int) byte {
	return byte(uint32(index)*b.seed>>7 + b.seed)
}

func newBlock(seed uint32) block {
	b := block{seed, make([]byte, 100+seed%60000)}
	for index, value := range b.bytes {
		if value != 0 {
			panic("a new block is not zero")
		}
		b.bytes[index] = b.at(index)
	}
	return b
}

func (b block) check() uint64 {
	var sum uint64
	for index, value := range b.bytes {
		if value != b.at(index) {
			panic("a block does not hold what was written")
		}
		sum = sum*31 + uint64(value)
	}
	return sum
}

func work(worker, blocks int) uint64 {
	const rounds = 6
	var sum uint64
	kept := make([]block, blocks)
	for round := 0; round < rounds; round++ {
		for index := range kept {
			if kept[index].bytes != nil {
				sum ^= kept[index].check()
			}
			seed := C.mix(C.uint(worker<<24 + round<<16 + index + 1))
			kept[index] = newBlock(uint32(seed))
		}
		if round%2 == 1 {
			for index := range kept[:blocks/2] {
				kept[index] = block{}
			}
			debug.FreeOSMemory()
		}
	}
	return sum
}

func main() {
	fmt.Println(each(3, work))
}
