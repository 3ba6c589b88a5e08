// Links C into a program that has none, so that it is no static one.
package main

import "C"
