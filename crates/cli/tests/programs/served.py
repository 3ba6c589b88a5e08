"""A WSGI application with a table that is made before the server forks: /N answers with a digest of a part of it."""

import hashlib

TABLE = [f"{i * 2654435761 % 1000003:06x}" * 8 for i in range(400_000)]


def app(environ, start_response):
    part = int(environ["PATH_INFO"].strip("/"))
    own = [entry.upper() for entry in TABLE[part % 7 :: 7]]
    answer = hashlib.sha256("".join(own).encode()).hexdigest().encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(answer)))])
    return [answer]
