// Go alone: maps, strings and slices that the collector moves nothing of and frees much of, by four goroutines.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
)

func filled(worker, entries int) map[int]string {
	names := map[int]string{}
	for index := 0; index < entries; index++ {
		names[(index*7919+worker)%1000003] = "entry " + strconv.Itoa(index*worker)
	}
	for index := 0; index < entries; index += 2 {
		delete(names, (index*7919+worker)%1000003)
	}
	runtime.GC()
	return names
}

func packed(lines []string) []byte {
	var out bytes.Buffer
	pack := gzip.NewWriter(&out)
	for _, line := range lines {
		io.WriteString(pack, line)
	}
	pack.Close()
	return out.Bytes()
}

func work(worker, entries int) [32]byte {
	var lines []string
	for key, name := range filled(worker+1, entries) {
		lines = append(lines, fmt.Sprintf("%07d %s\n", key, name))
	}
	slices.Sort(lines)
	unpack, err := gzip.NewReader(bytes.NewReader(packed(lines)))
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(unpack)
	if err != nil {
		panic(err)
	}
	return sha256.Sum256(text)
}

func main() {
	fmt.Printf("%x\n", each(4, work))
}
