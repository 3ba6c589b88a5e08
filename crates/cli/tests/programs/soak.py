"""A random mixture of real programs in one tree, of which random members are killed all the time.

    soak.py expect FILE             runs each job twice, and writes what it printed; a job that differs is left out
    soak.py soak FILE SECONDS SEED METRICS
                                    under `ramfold run --metrics unix:METRICS`: the mixture; a member is killed every two seconds
    soak.py after METRICS           in the same run, when the mixture has ended: nothing may be left of it
    soak.py squeeze FILE RAMFOLD SHARES MODES [NAME...]
                                    each job alone, in these shares of the memory that it wants (2,4: a half, a quarter), by these ways out

A job of which a member was killed proves nothing more, and is ended. Every other job has to print what it printed alone. A
job whose processes used no processor for a minute, while others did or nobody did, hangs. Every few minutes the mixture pauses
until the tree is empty: what the run still holds then (members, memory, descriptors of `ramfold run`) must not grow
from pause to pause. (What this program itself has in the swap file lies in more and more extents, few pages in each.) Ends with 0 and one line of JSON, or with 1 and what was wrong.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
AT_ONCE = 6
KILL_EVERY = 2.0
PAUSE_EVERY = 240.0
HANGS_AFTER = 60.0

# Name, the program that must be there, and a script of bash, in a directory of its own.
JOBS = [
    ("sort", "sort", "seq 1500000 | rev | LC_ALL=C sort -S 100M --parallel=2 | md5sum"),
    ("gzip", "gzip", "seq 900000 | rev | LC_ALL=C sort -S 60M | gzip -n | md5sum"),
    ("xz", "xz", "seq 700000 | xz -6 -T2 --block-size=1MiB | md5sum"),
    ("zstd", "zstd", "seq 1500000 | zstd -q -15 --long=27 | md5sum"),
    ("bash", "bash", "declare -A t; for ((i=0;i<60000;i++)); do t[$i]=$((i*i)); done; for p in 1 2 3; do (s=0; for k in ${!t[@]}; do ((s+=t[$k]%p+k)); t[$k]=$s; done; echo $p $s > $p) & done; wait; cat 1 2 3"),
    ("python", "python3", "python3 $HERE/objects.py 60000"),
    ("fork", "python3", "python3 $HERE/pool.py fork 40000"),
    ("spawn", "python3", "python3 $HERE/pool.py spawn 20000"),
    ("arrays", "python3", "python3 -c 'import numpy as n; a=n.arange(4000000)*7919%1000003; a.sort(); print(int(a[::1000].sum()), int((a.astype(float)**.5).sum()))'"),
    ("perl", "perl", "perl -e '$h{$_*7919%1000003}=\"v$_\" x 3 for 1..300000; my $s=0; $s+=length($h{$_})*($_%7) for keys %h; fork() or do { $_ .= \"x\" for values %h; exit }; wait; print \"$s\\n\"'"),
    ("ruby", "ruby", "ruby -e 'h={}; 300000.times{|i| h[i*7919%1000003]=\"v#{i}\"*3}; GC.start; Process.wait fork{ h.each_value{|v| v << \"x\"}}; puts h.sum{|k,v| k%7*v.size}'"),
    ("php", "php", "php -d memory_limit=-1 -r '$h=[]; for($i=0;$i<500000;$i++) $h[$i*7919%1000003]=str_repeat(\"v$i\",3); ksort($h); echo md5(implode(\",\",$h)),\"\\n\";'"),
    ("lua", "lua", "lua -e 'local t={} for i=1,800000 do t[i]={i*7919%1000003,tostring(i)} end table.sort(t,function(a,b) return a[1]<b[1] end) local s=0 for i=1,#t do s=(s*31+t[i][1]+#t[i][2])%1000000007 end print(s)'"),
    ("node", "node", "node -e 'const m=new Map();for(let i=0;i<400000;i++)m.set(i*7919%1000003,\"v\"+i);let s=0;for(const [k,v] of m)s+=k%7*v.length;console.log(s)'"),
    ("java", "java", "java -Xmx160m -cp $BUILT Allocate 100000"),
    ("erlang", "erl", "erl -noshell -eval 'L=[{I*7919 rem 1000003,integer_to_list(I)}||I<-lists:seq(1,400000)], S=lists:sort(L), io:format(\"~p~n\",[erlang:phash2(S)]), halt().'"),
    ("R", "Rscript", "Rscript -e 'x <- (1:2000000*7919)%%1000003; y <- sort(x); l <- split(y, y%%1000); cat(sum(sapply(l, median)), \"\\n\")'"),
    ("ghc", "ghc", "$BUILT/haskell"),
    ("ocaml", "ocamlopt", "$BUILT/ocaml"),
    ("sbcl", "sbcl", "sbcl --noinform --eval '(let ((h (make-hash-table)) (s 0)) (dotimes (i 300000) (setf (gethash (mod (* i 7919) 1000003) h) (list i i))) (gc :full t) (maphash (lambda (k v) (incf s (* (mod k 7) (car v)))) h) (print s))' --quit"),
    ("guile", "guile", "guile --no-auto-compile -c '(let ((h (make-hash-table))) (do ((i 0 (+ i 1))) ((= i 200000)) (hashv-set! h (modulo (* i 7919) 1000003) (list i))) (display (hash-fold (lambda (k v s) (+ s (* (modulo k 7) (car v)))) 0 h)))'"),
    ("go", "go", "$BUILT/cgo"),
    ("cc", "gcc", "gcc -O2 -c $BUILT/big.c -o big.o && md5sum < big.o"),
    ("make", "make", "cp $BUILT/part*.cpp $BUILT/Makefile . && make -s -j3 && cat *.o | md5sum"),
    ("rustc", "rustc", "rustc -O --crate-type lib -C metadata=x --emit obj=big.o $BUILT/big.rs 2>&1 && md5sum < big.o"),
    ("git", "git", "git clone -q $BUILT/repository r && cd r && git -c pack.threads=2 -c gc.autoDetach=false gc --quiet --aggressive && git fsck --strict && git rev-list --objects --all | sort | git cat-file --batch | md5sum"),
    ("sqlite", "sqlite3", "sed s/ROWS/40000/g $HERE/index.sql | sqlite3 :memory: | md5sum"),
    ("redis", "redis-server", "redis-server --port 0 --unixsocket $PWD/s --dir $PWD --save '' --enable-debug-command yes --daemonize no >log & for i in $(seq 100); do redis-cli -s s ping >/dev/null 2>&1 && break; sleep .1; done; redis-cli -s s debug populate 100000 key 100; redis-cli -s s bgsave; while redis-cli -s s info persistence | grep -q bgsave_in_progress:1; do sleep .1; done; redis-cli -s s debug reload; redis-cli -s s debug digest; redis-cli -s s shutdown nosave; wait"),
    ("postgres", "pgbench", "D=$PWD/pg; mkdir $D; chmod 711 .; chown postgres $D; B=$(ls -d /usr/lib/postgresql/*/bin | tail -1); setpriv --reuid postgres --regid postgres --clear-groups bash -c \"cd $D; export LC_ALL=C; $B/initdb -D d -A trust >/dev/null && $B/pg_ctl -D d -w -t 600 -o '-k $D -h \\\"\\\" -F' start >/dev/null && pgbench -h $D -i -q -s 2 postgres 2>/dev/null && pgbench -h $D -c 8 -j 2 -t 50 postgres >/dev/null 2>&1; psql -h $D -At postgres -c 'select (select sum(abalance) from pgbench_accounts)=(select sum(delta) from pgbench_history), (select sum(tbalance) from pgbench_tellers)=(select sum(bbalance) from pgbench_branches), (select count(*) from pgbench_history)'; $B/pg_ctl -D d -m fast -t 600 stop >/dev/null\""),
    ("mariadb", "mariadbd", "D=$PWD/my; mariadb-install-db --no-defaults --datadir=$D --user=root --auth-root-authentication-method=normal >/dev/null 2>&1; mariadbd --no-defaults --datadir=$D --socket=$D/s --skip-networking --user=root --innodb-buffer-pool-size=64M >log 2>&1 & for i in $(seq 600); do mariadb-admin -S $D/s ping >/dev/null 2>&1 && break; sleep .1; done; mariadb -S $D/s -e \"create database d; use d; create table t(i int primary key, v varchar(200), key(v)) engine=innodb; insert into t select seq, repeat(md5(seq), 4) from seq_1_to_40000; update t set v=reverse(v) where i%3=0; delete from t where i%7=0; select count(*), sum(crc32(v)) from t; select sum(crc32(a.v)) from t a join t b on a.v=b.v; checksum table t\"; mariadb-admin -S $D/s -u root shutdown; wait"),
    ("nginx", "nginx", "python3 $HERE/servers.py nginx"),
    ("memcached", "memcached", "memcached -u root -s $PWD/s -m 128 -t 4 & sleep 1; python3 $HERE/servers.py memcached; kill $!; wait"),
    ("short", "true", "for i in $(seq 300); do /bin/true; done; echo $i"),
]


def build(into):
    """What the jobs need: compiled once, not under test."""
    write = lambda name, text: open(os.path.join(into, name), "w").write(text)
    function = "unsigned f{0}(unsigned*a,unsigned n){{unsigned s={0};for(unsigned i=0;i<n;i++){{if(a[i]%{1}==0)s^=a[i]*{2}u;else s+=a[i]>>(i%{1});switch(s%5){{case 0:s*=3;break;case 1:s-=a[i];break;case 2:s^=s<<3;break;default:s++;}}}}return s;}}\n"
    write("big.c", "".join(function.format(i, i % 29 + 2, i * 2654435761 % (1 << 32)) for i in range(350)))
    for part in range(4):
        text = "#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n"
        text += "".join(f"int g{part}_{i}(std::map<std::string,std::vector<int>>&m){{auto&v=m[\"{i}\"];std::sort(v.begin(),v.end(),[](int a,int b){{return a%{i+3}<b%{i+3};}});return v.size();}}\n" for i in range(20))
        write(f"part{part}.cpp", text)
    write("Makefile", "all: part0.o part1.o part2.o part3.o\n%.o: %.cpp\n\tg++ -O1 -c $< -o $@\n")
    write("big.rs", "".join(f"#[no_mangle] pub fn f{i}(v: &mut Vec<u64>) -> Option<u64> {{ v.sort_by_key(|x| x % {i + 3}); v.dedup(); v.iter().map(|x| x * {i}).filter(|x| x % 3 == 0).max() }}\n" for i in range(60)))
    write("h.hs", "import qualified Data.Map.Strict as M\nmain = print (M.foldlWithKey' (\\s k v -> (s*31 + k + length v) `mod` 1000000007) 7 (M.fromList [(i*7919 `mod` 1000003, show i) | i <- [1..150000::Int]]))\n")
    write("o.ml", "let () = let h = Hashtbl.create 16 in for i = 1 to 300000 do Hashtbl.replace h (i * 7919 mod 1000003) (string_of_int i) done; Gc.compact (); print_int (Hashtbl.fold (fun k v s -> s + k mod 7 * String.length v) h 0)\n")
    os.makedirs(os.path.join(into, "go"))
    write("go/main.go", "package main\n\n/*\n#include <stdlib.h>\n*/\nimport \"C\"\nimport (\"fmt\"; \"runtime\")\n\nfunc main() {\n\tm := map[int]string{}\n\tfor i := 0; i < 300000; i++ { m[i*7919%1000003] = fmt.Sprint(i) }\n\tfor i := 0; i < 300000; i += 2 { delete(m, i*7919%1000003) }\n\truntime.GC()\n\tp := C.malloc(1000)\n\ts := 0\n\tfor k, v := range m { s += k % 7 * len(v) }\n\tC.free(p)\n\tfmt.Println(s)\n}\n")
    write("go/go.mod", "module soak\n\ngo 1.18\n")
    steps = [
        ("java", f"javac -d {into} {HERE}/Allocate.java"),
        ("ghc", f"cd {into} && ghc -O h.hs -o haskell"),
        ("ocamlopt", f"cd {into} && ocamlopt o.ml -o ocaml"),
        ("go", f"cd {into}/go && CGO_ENABLED=1 go build -o ../cgo ."),
        ("git", f"cd {into} && git init -q repository && cd repository && git config user.name x && git config user.email x@x && export GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'; for i in $(seq 12); do seq $i $((i % 3 + 1)) $((i * 1000 + 200000)) > file$((i % 4)); git add .; git commit -q -m $i; done"),
    ]
    for program, step in steps:
        if shutil.which(program):
            subprocess.run(["bash", "-c", step], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Job:
    """A job under way. Its processes are known by what they show of its directory (`traces`), also those that left the tree."""

    def __init__(self, job, built, before=()):
        self.name = job[0]
        self.directory = tempfile.mkdtemp(prefix="soak-job.", dir=os.path.abspath(os.path.dirname(built)))
        self.output = open(os.path.join(self.directory, ".output"), "w+b")
        environment = dict(os.environ, HERE=HERE, BUILT=built, SOAK_JOB=self.directory, TMPDIR=self.directory)
        self.process = subprocess.Popen([*before, "bash", "-c", job[2]], cwd=self.directory, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.output, stderr=open(os.path.join(self.directory, ".errors"), "w"), start_new_session=True)
        self.started = self.moved = time.monotonic()
        self.used = 0
        self.struck = None

    def members(self):
        return [pid for pid, directory in marked().items() if directory == self.directory]

    def errors(self):
        text = open(os.path.join(self.directory, ".errors"), errors="replace").read()
        return next((line for line in text.splitlines() if line.startswith("ramfold: ")), text[-200:])

    def stands_still(self):
        """Whether its processes have used no processor for a while."""
        now, used = time.monotonic(), processor_time(self.members())
        if used != self.used:
            self.used, self.moved = used, now
        return now - self.moved > HANGS_AFTER

    def digest(self):
        self.output.seek(0)
        text = self.output.read()
        return f"{self.process.returncode} {hashlib.md5(text).hexdigest()} {text[:60]!r}"

    def end(self):
        for _ in range(100):
            members = self.members()
            if not members:
                break
            for pid in members:
                strike(pid)
            time.sleep(0.02)
        self.process.wait()
        self.output.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def strike(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def traces(process):
    """Where a process shows of which job it is. Daemons write their title over their environment, and may have another
    working directory; their sockets' and files' descriptors stay."""
    yield from (word.decode(errors="replace") for word in open(f"{process}/environ", "rb").read().split(b"\0"))
    yield os.readlink(f"{process}/cwd")
    yield open(f"{process}/cmdline", "rb").read().decode(errors="replace")
    for descriptor in os.listdir(f"{process}/fd"):
        try:
            yield os.readlink(f"{process}/fd/{descriptor}")
        except OSError:
            pass


def marked():
    """The directory of each job's processes."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) == os.getpid() or open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[0] == "Z":
                continue
            marks = (re.search(r"/[^ =:\0]*/soak-job\.[a-z0-9_]+", trace) for trace in traces(f"/proc/{name}"))
            mark = next((mark[0] for mark in marks if mark), None)
            if mark is not None:
                found[int(name)] = mark
        except OSError:
            pass
    return found


def processor_time(pids):
    total = 0
    for pid in pids:
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))
        except OSError:
            pass
    return total


def built_beside(path):
    return os.path.join(os.path.dirname(os.path.abspath(path)), "built")


def expect(path):
    built = built_beside(path)
    os.makedirs(built)
    build(built)
    expected, left_out = {}, []
    for job in JOBS:
        if not shutil.which(job[1]):
            left_out.append(job[0])
            continue
        seen = []
        for _ in range(2):
            run = Job(job, built)
            run.process.wait()
            seen.append(run.digest())
            run.end()
        if seen[0] == seen[1] and seen[0].startswith("0 "):
            expected[job[0]] = seen[0]
        else:
            left_out.append(f"{job[0]} ({seen})")
    json.dump(expected, open(path, "w"))
    print(json.dumps({"jobs": len(expected), "left_out": left_out}))


def supervisor():
    """The `ramfold run` that this process is in."""
    return re.search(r"shm=/proc/(\d+)/", os.environ["RAMFOLD_RUN"])[1]


def figures(metrics):
    """What the run holds, by its metrics and its descriptors."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(metrics)
    connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    value = lambda name: next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"ramfold_{name} ")), None)
    names = ["living_processes", "in_use_bytes", "swap_used_bytes", "unmanaged_bytes", "processes_total", "peak_bytes", "limit_bytes"]
    mine = next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f'ramfold_swap_bytes{{pid="{os.getpid()}"')), None)
    return {**{name: value(name) for name in names}, "own_swap_bytes": mine, "descriptors": descriptors(supervisor())}


def descriptors(pid):
    """How many it has beside that of this process's memory: `ramfold run` opens it once something of it is away, while it lives."""
    def target(name):
        try:
            return os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            return None
    targets = [target(name) for name in os.listdir(f"/proc/{pid}/fd")]
    return sum(target not in (None, f"/proc/{os.getpid()}/mem") for target in targets)


def report_hang(job):
    print(f"HANG: {job.name}, {time.monotonic() - job.started:.0f} s old")
    for pid in job.members():
        for name in ("comm", "wchan", "stat", "stack"):
            try:
                print(pid, name, open(f"/proc/{pid}/{name}").read()[:400])
            except OSError:
                pass
        if shutil.which("gdb"):
            trace = subprocess.run(["timeout", "30", "gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 14"], capture_output=True, text=True)
            print(trace.stdout[-6000:])
    sys.stdout.flush()


class Soak:
    def __init__(self, path, seconds, seed, metrics):
        self.expected = json.load(open(path))
        self.built = built_beside(path)
        self.jobs = [job for job in JOBS if job[0] in self.expected]
        self.end, self.metrics, self.random = time.monotonic() + seconds, metrics, random.Random(seed)
        self.running, self.wrong, self.pauses = [], [], []
        self.done, self.killed = {}, 0

    def look(self, job):
        """Whether the job is over."""
        now = time.monotonic()
        if job.process.poll() is not None:
            if job.struck is None:
                seen = job.digest()
                self.done[job.name] = self.done.get(job.name, 0) + 1
                if seen != self.expected[job.name]:
                    self.wrong.append(f"{job.name}: {seen} instead of {self.expected[job.name]}")
                    print("WRONG", self.wrong[-1], flush=True)
            return True
        if job.struck is not None:
            return now - job.struck > 5
        if job.stands_still():
            report_hang(job)
            self.wrong.append(f"{job.name} hangs")
            return True
        return False

    def kill_one(self):
        members = marked()
        if members:
            pid = self.random.choice(sorted(members))
            for job in self.running:
                if job.directory == members[pid]:
                    job.struck = job.struck or time.monotonic()
                    self.killed += 1
                    strike(pid)

    def step(self, start_more):
        for job in [job for job in self.running if self.look(job)]:
            job.end()
            self.running.remove(job)
        while start_more and len(self.running) < AT_ONCE:
            self.running.append(Job(self.random.choice(self.jobs), self.built))
        time.sleep(0.1)

    def pause(self):
        while self.running:
            self.step(False)
        time.sleep(3)
        self.pauses.append(figures(self.metrics))
        print(json.dumps(self.pauses[-1]), sum(self.done.values()), "jobs whole,", self.killed, "killed", flush=True)

    def run(self):
        kill_at = time.monotonic() + KILL_EVERY
        pause_at = time.monotonic() + PAUSE_EVERY / 4
        self.pause()
        while time.monotonic() < self.end and not self.wrong:
            self.step(True)
            if time.monotonic() > kill_at:
                self.kill_one()
                kill_at = time.monotonic() + KILL_EVERY
            if time.monotonic() > pause_at:
                self.pause()
                pause_at = time.monotonic() + PAUSE_EVERY
        self.pause()
        first, last = self.pauses[1], self.pauses[-1]
        for name, slack in (("living_processes", 0), ("descriptors", 0), ("in_use_bytes", 8 << 20)):
            if last[name] > first[name] + slack:
                self.wrong.append(f"{name} grew: {first[name]}, {last[name]}")
        never = sorted(set(self.expected) - set(self.done))
        print(json.dumps({"wrong": self.wrong, "done": self.done, "never": never, "killed": self.killed, "first": first, "last": last}))
        return 1 if self.wrong else 0


def squeeze(path, ramfold, shares, modes, names):
    """Each job's output in a share of what it takes at most where there is enough. Prints a line each; 0 if all are equal."""
    here = os.path.dirname(os.path.abspath(path))
    expected, built, stats, wrong = json.load(open(path)), os.path.join(here, "built"), os.path.join(here, "stats"), 0

    def under(job, limit, mode):
        """What it printed, seconds, most memory in bytes, and what ramfold said."""
        run = Job(job, built, [ramfold, "run", "-m", str(limit), "--swap-size", "8G", "--evict-mode", mode, "--stats", stats, "--"])
        while run.process.poll() is None:
            if run.stands_still():
                report_hang(run)
                run.end()
                return "hangs", 0, 0, ""
            time.sleep(0.05)
        told = open(stats).read()
        if not told:
            sys.exit(f"{job[0]}: ramfold ended with {run.process.returncode} and told nothing: {run.errors()}")
        result = run.digest(), time.monotonic() - run.started, json.loads(told)["peak_bytes"], run.errors()
        run.end()
        return result

    for job in JOBS:
        if job[0] not in expected or names and job[0] not in names:
            continue
        seen, alone, peak, _ = under(job, 16 << 30, modes[0])
        for share, mode in [(1, modes[0])] + [(share, mode) for share in shares for mode in modes]:
            limit = max(peak // share, 16 << 20)
            seen, seconds, most, said = under(job, limit, mode) if share > 1 else (seen, alone, peak, "")
            equal = seen == expected[job[0]]
            wrong += not equal
            print("ok" if equal else "WRONG", job[0], f"1/{share}", mode, f"{seconds:.1f} s, {most / (1 << 20):.1f} of {limit / (1 << 20):.1f} MiB",
                  "" if equal else f"{seen}; {said}", flush=True)
    print(f"{wrong} wrong")
    return wrong


def after(metrics):
    """Whether all that the mixture had has come back."""
    left = figures(metrics)
    print(json.dumps(left))
    return left["swap_used_bytes"] == 0 and left["living_processes"] <= 2 and left["in_use_bytes"] < 32 << 20


if __name__ == "__main__":
    if sys.argv[1] == "expect":
        expect(sys.argv[2])
    elif sys.argv[1] == "after":
        sys.exit(not after(sys.argv[2]))
    elif sys.argv[1] == "squeeze":
        sys.exit(min(squeeze(sys.argv[2], sys.argv[3], list(map(int, sys.argv[4].split(","))), sys.argv[5].split(","), sys.argv[6:]), 1))
    else:
        sys.exit(Soak(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]).run())
