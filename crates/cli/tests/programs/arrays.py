"""numpy: COUNT numbers sorted and transformed, a product of matrices of SIDE; prints a digest of each result."""

import hashlib
import sys

import numpy

count, side = int(sys.argv[1]), int(sys.argv[2])


def show(name, array):
    print(name, hashlib.sha256(array.tobytes()).hexdigest())


numbers = numpy.random.default_rng(1).random(count)
show("numbers", numbers)
show("sort", numpy.sort(numbers))
show("argsort", numpy.argsort(numbers, kind="stable"))
show("fft", numpy.fft.fft(numbers))
matrix = numbers[: side * side].reshape(side, side)
show("product", matrix @ matrix.T)
show("sums", numpy.cumsum(numbers.reshape(-1, 1000), axis=1))
