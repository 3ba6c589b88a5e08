// Go with C in it: memory crosses from one to the other. C's malloc gives blocks that Go fills and C sorts; C reads what
// Go has; a mapping is made by Go's own instructions and written to by C.
package main

/*
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return (x > y) - (x < y);
}

static void sort(unsigned long *words, size_t count) { qsort(words, count, sizeof *words, compare); }

static unsigned long sum(const void *bytes, size_t count) {
    unsigned long sum = 0;
    for (size_t i = 0; i < count; i++) sum = sum * 31 + ((const unsigned char *)bytes)[i];
    return sum;
}
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"
)

const words = 8192

func sorted(seed uint64) *C.ulong {
	block := (*C.ulong)(C.malloc(words * 8))
	for index := range unsafe.Slice(block, words) {
		seed = seed*6364136223846793005 + 1442695040888963407
		unsafe.Slice(block, words)[index] = C.ulong(seed >> 20)
	}
	C.sort(block, words)
	return block
}

func work(worker, blocks int) uint64 {
	var kept []*C.ulong
	var copies [][]byte
	for index := 0; index < blocks; index++ {
		block := sorted(uint64(worker*blocks + index))
		kept = append(kept, block)
		copies = append(copies, C.GoBytes(unsafe.Pointer(block), words*8))
	}
	var sum uint64
	for index, block := range kept {
		ofC := C.sum(unsafe.Pointer(block), words*8)
		ofGo := C.sum(unsafe.Pointer(&copies[index][0]), words*8)
		if ofC != ofGo {
			panic("a copy is not what was copied")
		}
		sum = sum*31 + uint64(ofC)
		C.free(unsafe.Pointer(block))
		text := C.CString(fmt.Sprint(sum))
		sum += uint64(C.strlen(text))
		C.free(unsafe.Pointer(text))
	}
	return sum
}

func mapped(size int) uint64 {
	memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	C.memset(unsafe.Pointer(&memory[0]), 7, C.size_t(size/2))
	sum := uint64(C.sum(unsafe.Pointer(&memory[0]), C.size_t(size)))
	if err := syscall.Munmap(memory); err != nil {
		panic(err)
	}
	return sum
}

func main() {
	fmt.Println(each(3, work), mapped(1<<20))
}
