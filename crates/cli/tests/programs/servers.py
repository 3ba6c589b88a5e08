"""Clients of servers, with answers that can be compared.

    servers.py nginx        starts nginx with four workers that compress, asks for many pages at once, prints their digests
    servers.py memcached    stores values in the memcached at ./s by eight connections, reads them back, prints their digest
"""

import gzip
import hashlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time

CLIENTS = 8
PAGES = 24
VALUES = 6000


def in_threads(work):
    results = [None] * CLIENTS

    def one(number):
        results[number] = work(number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def connect(path):
    for _ in range(300):
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
            return connection
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nobody listens at {path}")


def nginx():
    here = os.getcwd()
    os.chmod(here, 0o755)
    for page in range(PAGES):
        with open(f"page{page}.txt", "w") as file:
            file.writelines(f"{page} {line * 7919 % 1000003}\n" for line in range(60_000))
    with open("nginx.conf", "w") as file:
        file.write(
            f"worker_processes 4; daemon off; pid {here}/pid; error_log {here}/log; user root;\n"
            f"events {{ worker_connections 64; }}\n"
            f"http {{ access_log off; default_type text/plain; gzip on; gzip_comp_level 9; gzip_min_length 1; gzip_types text/plain;\n"
            f"gzip_buffers 64 64k; output_buffers 8 256k; client_body_temp_path {here}/t1; proxy_temp_path {here}/t2; fastcgi_temp_path {here}/t3;\n"
            f"uwsgi_temp_path {here}/t4; scgi_temp_path {here}/t5; server {{ listen unix:{here}/s; root {here}; }} }}\n"
        )
    server = subprocess.Popen(["nginx", "-c", f"{here}/nginx.conf", "-p", here, "-e", f"{here}/log"], stderr=subprocess.DEVNULL)

    def ask(number):
        digest = hashlib.md5()
        for turn in range(PAGES):
            client = http.client.HTTPConnection("here")
            client.sock = connect(f"{here}/s")
            client.request("GET", f"/page{(turn + number) % PAGES}.txt", headers={"Accept-Encoding": "gzip"})
            answer = client.getresponse()
            digest.update(b"%d" % answer.status + gzip.decompress(answer.read()))
            client.close()
        return digest.hexdigest()

    print(in_threads(ask))
    server.terminate()
    print(server.wait())


def memcached():
    def value(number, index):
        return f"{number}.{index}.".encode() * (index % 97 + 1)

    def ask(number):
        connection = connect("s")
        answers = connection.makefile("rb")
        digest = hashlib.md5()
        for index in range(VALUES):
            text = value(number, index)
            connection.sendall(b"set k%d.%d 0 0 %d\r\n%s\r\n" % (number, index, len(text), text))
            digest.update(answers.readline())
        for index in range(VALUES):
            connection.sendall(b"get k%d.%d\r\n" % (number, index * 7919 % VALUES))
            while (line := answers.readline()) != b"END\r\n" and line:
                digest.update(line)
        return digest.hexdigest()

    print(in_threads(ask))


{"nginx": nginx, "memcached": memcached}[sys.argv[1]]()
