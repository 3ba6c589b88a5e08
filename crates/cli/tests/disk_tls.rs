//! `ramfold disk --tls-certificates` with the clients that people use, and with such as nobody should let in.

#[path = "shared/client.rs"]
mod client;
mod command;
#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;
#[path = "common/patience.rs"]
mod patience;
#[path = "shared/served.rs"]
mod served;

use command::{finish, one_line, ramfold};
use patience::wait_for;
use served::{Disk, client};
use std::fs::{self, File};
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const OPTION: &[u8; 8] = b"IHAVEOPT";
const ACK: u32 = 1;
const INVALID: u32 = 1 << 31 | 3;
const TLS_REQUIRED: u32 = 1 << 31 | 5;

/// Directories of certificates, made for this test.
struct Keys(TempDir);

impl Keys {
    /// One authority, a server and a client.
    fn new() -> Option<Self> {
        if !need::programs(&["openssl", "nbdinfo", "nbdcopy"]) {
            return None;
        }
        let keys = Self(tempfile::tempdir_in("/var/tmp").unwrap());
        keys.authority("pki");
        keys.sign("pki", "server");
        keys.sign("pki", "client");
        Some(keys)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn openssl(&self, directory: &str, line: &str) {
        let mut command = Command::new("openssl");
        let done = finish(command.args(line.split(' ')).current_dir(self.path(directory)));
        assert_eq!(done.code, Some(0), "{line}: {}", done.stderr);
    }

    fn authority(&self, directory: &str) {
        fs::create_dir(self.path(directory)).unwrap();
        self.openssl(
            directory,
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority \
             -addext keyUsage=critical,keyCertSign,cRLSign -keyout ca-key.pem -out ca-cert.pem",
        );
    }

    /// A certificate for a `server` or a `client`.
    fn sign(&self, directory: &str, who: &str) {
        let request = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost";
        self.openssl(directory, &format!("{request} -keyout {who}-key.pem -out {who}.csr"));
        let extensions = format!("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage={who}Auth\n");
        fs::write(self.path(directory).join("extensions"), extensions).unwrap();
        self.openssl(
            directory,
            &format!(
                "x509 -req -in {who}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
                 -extfile extensions -out {who}-cert.pem"
            ),
        );
    }

    /// Says that the client's certificate counts no more.
    fn revoke(&self, directory: &str) {
        let place = self.path(directory);
        fs::write(place.join("index"), "").unwrap();
        let config = "[ca]\ndefault_ca=it\n[it]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=2\n\
                      crlnumber=number\ncrl_extensions=more\n[more]\nauthorityKeyIdentifier=keyid:always\n";
        fs::write(place.join("number"), "01\n").unwrap();
        fs::write(place.join("config"), config).unwrap();
        let signed_by = "-config config -cert ca-cert.pem -keyfile ca-key.pem";
        self.openssl(directory, &format!("ca {signed_by} -revoke client-cert.pem"));
        self.openssl(directory, &format!("ca {signed_by} -gencrl -out crl.new"));
        fs::rename(place.join("crl.new"), place.join("ca-crl.pem")).unwrap();
    }

    fn disk(&self, options: &[&str]) -> Disk {
        let (pki, tell) = (self.text("pki"), File::create(self.path("told")).unwrap());
        let fixed = ["--size", "64M", "--tcp", "127.0.0.1:0", "--tls-certificates", &pki];
        Disk::start_telling(&[&fixed[..], options].concat(), Stdio::from(tell))
    }

    /// The disk's URI for a client that has this directory.
    fn uri(&self, disk: &Disk, directory: &str) -> String {
        format!("{}?tls-certificates={}", disk.uri, self.text(directory))
    }

    fn may_come(&self, disk: &Disk, directory: &str) -> bool {
        let mut command = Command::new("timeout");
        let done = finish(command.args(["20", "nbdinfo", "--size", &self.uri(disk, directory)]));
        assert!(done.code == Some(0) || done.code == Some(1), "{done:?}");
        done.code == Some(0)
    }

    fn told(&self) -> String {
        fs::read_to_string(self.path("told")).unwrap()
    }
}

fn connect(disk: &Disk) -> TcpStream {
    let stream = TcpStream::connect(disk.uri.strip_prefix("nbds://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// A client that has said hello.
fn greeted(disk: &Disk) -> TcpStream {
    let mut stream = connect(disk);
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream
}

/// The answer to an option.
fn ask(stream: &mut TcpStream, option: u32, data: &[u8]) -> u32 {
    let len = u32::try_from(data.len()).unwrap();
    let asked = [OPTION, &option.to_be_bytes()[..], &len.to_be_bytes(), data].concat();
    stream.write_all(&asked).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    let number = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
    let mut text = vec![0; number(16) as usize];
    stream.read_exact(&mut text).unwrap();
    number(12)
}

/// Whether the disk hangs up, whatever it says before.
fn ends(stream: &mut TcpStream) -> bool {
    let read = std::io::copy(stream, &mut std::io::sink());
    read.map_or_else(|error| error.kind() == ConnectionReset, |len| len < 1 << 16)
}

#[test]
fn what_was_copied_there_comes_back() {
    let Some(keys) = Keys::new() else { return };
    // The command is larger than the disk where it is not optimized.
    let mut image = fs::read(command::PATH).unwrap();
    image.truncate(8 << 20);
    fs::write(keys.path("image"), &image).unwrap();
    for options in [&[][..], &["--tls-verify-peer"]] {
        let disk = keys.disk(options);
        assert!(disk.uri.starts_with("nbds://127.0.0.1:"), "{}", disk.uri);
        let (uri, back) = (keys.uri(&disk, "pki"), keys.text("back"));
        client("nbdcopy", &[&keys.text("image"), &uri]);
        client("nbdcopy", &[&uri, &back]);
        let mut copied = fs::read(&back).unwrap();
        copied.truncate(image.len());
        assert!(copied == image);
        let info = client("nbdinfo", &[&uri]);
        assert!(info.contains("newstyle-fixed with TLS, using structured packets"), "{info}");
        assert_eq!(disk.stop(), Some(0));
    }
}

#[test]
fn qemu_comes_by_tls_and_a_unix_socket_has_it_too() {
    let Some(keys) = Keys::new().filter(|_| need::programs(&["qemu-img", "qemu-io"])) else { return };
    let socket = keys.text("socket");
    let fixed = ["--size", "64M", "--unix", &socket, "--tls-verify-peer", "--tls-certificates"];
    let disk = Disk::start(&[&fixed[..], &[&keys.text("pki")]].concat());
    assert_eq!(disk.uri, format!("nbds+unix:///?socket={socket}"));
    let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", keys.text("pki"));
    let image = format!("driver=nbd,path={socket},tls-creds=tls,tls-hostname=localhost");
    let options = ["--object", &object, "--image-opts", &image];
    let info = client("qemu-img", &[&["info"], &options[..]].concat());
    assert!(info.contains("64 MiB"), "{info}");
    let writes = ["-c", "aio_write -P 0xab 1000 9M", "-c", "aio_flush", "-c", "read -P 0xab 1000 9M"];
    let told = client("qemu-io", &[&writes, &options[..]].concat());
    assert!(!told.contains("failed"), "{told}");
    assert_eq!(disk.stop(), Some(0));
}

#[test]
fn who_has_no_certificate_of_the_authority_stays_outside() {
    let Some(keys) = Keys::new() else { return };
    // Another's client, that knows the server's authority; and one that has nothing to show.
    keys.authority("other");
    keys.sign("other", "client");
    fs::copy(keys.path("pki/ca-cert.pem"), keys.path("other/ca-cert.pem")).unwrap();
    fs::create_dir(keys.path("none")).unwrap();
    symlink(keys.path("pki/ca-cert.pem"), keys.path("none/ca-cert.pem")).unwrap();
    let disk = keys.disk(&[]);
    let all = ["pki", "other", "none"];
    assert_eq!(all.map(|who| keys.may_come(&disk, who)), [true, true, true], "nobody asks them");
    let disk = keys.disk(&["--tls-verify-peer"]);
    assert_eq!(all.map(|who| keys.may_come(&disk, who)), [true, false, false]);
    // From now on, without a restart, the client's certificate counts no more.
    keys.revoke("pki");
    assert!(!keys.may_come(&disk, "pki"));
    assert_eq!(disk.stop(), Some(0));
}

#[test]
fn without_tls_nothing_is_told() {
    let Some(keys) = Keys::new() else { return };
    let disk = keys.disk(&[]);
    let mut stream = greeted(&disk);
    // LIST, INFO and GO of the empty name, structured replies, one that nobody knows.
    for (option, data) in [(3, &[][..]), (6, &[0; 6]), (7, &[0; 6]), (8, &[]), (99, &[])] {
        assert_eq!(ask(&mut stream, option, data), TLS_REQUIRED, "{option}");
    }
    assert_eq!(ask(&mut stream, 5, b"x"), INVALID);
    assert_eq!(ask(&mut stream, 5, &[]), ACK);
    drop(stream);
    // EXPORT_NAME has no errors; ABORT is always understood.
    let mut stream = greeted(&disk);
    stream.write_all(&[OPTION, &1_u64.to_be_bytes()[..], &[0; 4]].concat()[..16]).unwrap();
    stream.write_all(&[0; 16]).unwrap();
    assert!(ends(&mut stream));
    let mut stream = greeted(&disk);
    assert_eq!(ask(&mut stream, 2, &[]), ACK);
    assert!(ends(&mut stream));
    // A disk without certificates knows the option as little as before.
    let socket = keys.text("plain");
    let plain = Disk::start(&["--size", "1M", "--unix", &socket]);
    assert!(finish(Command::new("nbdinfo").arg(format!("nbds+unix:///?socket={socket}"))).code == Some(1));
    client("nbdinfo", &["--size", &plain.uri]);
}

/// What comes in one piece with STARTTLS, unprotected, must not count as what comes after it.
#[test]
fn hostile_bytes_and_silence_disturb_nobody() {
    let Some(keys) = Keys::new() else { return };
    let disk = keys.disk(&["--tls-verify-peer"]);
    let go = [OPTION, &[0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0][..]].concat();
    let record = |kind: u8, len: usize| {
        [&[kind, 3, 3][..], &u16::try_from(len).unwrap().to_be_bytes(), &vec![0xff; len]].concat()
    };
    let hostile = [go, vec![0xff; 70_000], record(22, 16_000), record(23, 100), record(20, 1), vec![0; 40]];
    for bytes in hostile {
        let mut stream = greeted(&disk);
        let start = [OPTION, &5_u32.to_be_bytes()[..], &[0; 4]].concat();
        // The disk may hang up before all of it is sent.
        let sent = stream.write_all(&[start, bytes].concat());
        if let Err(cut) = sent.and_then(|()| stream.shutdown(std::net::Shutdown::Write)) {
            assert!([BrokenPipe, ConnectionReset, NotConnected].contains(&cut.kind()), "{cut}");
        }
        assert!(ends(&mut stream));
    }
    // A client of plain TLS speaks first, and something else.
    let address = disk.uri.strip_prefix("nbds://").unwrap();
    let mut openssl = Command::new("timeout");
    openssl.args(["20", "openssl", "s_client", "-connect", address]).stdin(Stdio::null());
    assert_eq!(finish(&mut openssl).code, Some(1));
    // Half of a hundred stop before TLS, half in the middle of it.
    let mut silent: Vec<TcpStream> = (0..100).map(|_| greeted(&disk)).collect();
    for stream in silent.iter_mut().step_by(2) {
        assert_eq!(ask(stream, 5, &[]), ACK);
        stream.write_all(&record(22, 200)[..100]).unwrap();
    }
    assert!(keys.may_come(&disk, "pki"));
    assert_eq!(disk.stop(), Some(0), "it stops though they are there");
}

#[test]
fn renewed_certificates_count_for_whoever_comes_next() {
    let Some(keys) = Keys::new() else { return };
    let disk = keys.disk(&["--tls-verify-peer"]);
    assert!(keys.may_come(&disk, "pki"));
    keys.authority("next");
    keys.sign("next", "server");
    keys.sign("next", "client");
    let renew = |name: &str| {
        fs::copy(keys.path("next").join(name), keys.path("new")).unwrap();
        fs::rename(keys.path("new"), keys.path("pki").join(name)).unwrap();
    };
    fs::create_dir(keys.path("former")).unwrap();
    for name in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        fs::copy(keys.path("pki").join(name), keys.path("former").join(name)).unwrap();
    }
    // Half way they make no sense: who came before still may, and that is told once.
    renew("server-cert.pem");
    assert!(keys.may_come(&disk, "former") && keys.may_come(&disk, "former"));
    wait_for("it is told", || keys.told().contains("the former certificates go on"));
    assert_eq!(keys.told().matches("the former certificates go on").count(), 1, "{}", keys.told());
    fs::remove_file(keys.path("pki/server-key.pem")).unwrap();
    assert!(keys.may_come(&disk, "former"));
    renew("server-key.pem");
    renew("ca-cert.pem");
    assert_eq!(["former", "next"].map(|who| keys.may_come(&disk, who)), [false, true]);
    // Who is revoked is not known: nobody comes.
    fs::write(keys.path("pki/ca-crl.pem"), "nothing").unwrap();
    assert!(!keys.may_come(&disk, "next") && !keys.may_come(&disk, "next"));
    assert_eq!(keys.told().matches("nobody comes in until it is mended").count(), 1, "{}", keys.told());
    fs::remove_file(keys.path("pki/ca-crl.pem")).unwrap();
    assert!(keys.may_come(&disk, "next"));
    assert_eq!(disk.stop(), Some(0));
}

#[test]
fn others_than_this_machine_come_by_tls_or_if_that_is_meant() {
    let Some(keys) = Keys::new() else { return };
    let pki = keys.text("pki");
    let everywhere = ["--size", "1M", "--tcp", "0.0.0.0:0"];
    let refused = ramfold(&[&["disk"], &everywhere[..]].concat());
    assert_eq!(refused.code, Some(125));
    assert!(one_line(&refused.stderr).contains("--tls-certificates"), "{}", refused.stderr);
    let disk = Disk::start(&[&everywhere[..], &["--tls-certificates", &pki]].concat());
    let port = disk.uri.strip_prefix("nbds://0.0.0.0:").unwrap();
    client("nbdinfo", &["--size", &format!("nbds://localhost:{port}?tls-certificates={pki}")]);
    let disk = Disk::start(&[&everywhere[..], &["--no-tls"]].concat());
    let port = disk.uri.strip_prefix("nbd://0.0.0.0:").unwrap();
    client("nbdinfo", &["--size", &format!("nbd://127.0.0.1:{port}")]);
}

#[test]
fn disks_of_a_file_have_them_and_those_that_are_added() {
    let Some(keys) = Keys::new() else { return };
    let (pki, config, runtime) = (keys.text("pki"), keys.path("disks.toml"), keys.0.path());
    let disk = "[[disk]]\nname = \"one\"\nsize = \"1M\"\ntcp = \"127.0.0.1:0\"\n";
    fs::write(&config, format!("{disk}tls-certificates = \"{pki}\"\ntls-verify-peer = true\n")).unwrap();
    let mut server = Command::new(command::PATH);
    server.args(["disk", "--config", config.to_str().unwrap()]).env("XDG_RUNTIME_DIR", runtime);
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ctl = |words: &[&str]| {
        let mut ctl = command::command(&[&["ctl", "disks0"], words].concat());
        finish(ctl.env("XDG_RUNTIME_DIR", runtime))
    };
    wait_for("it is served", || ctl(&["disks"]).stdout.contains("nbds://"));
    let words = ["hot_add", "size=1M", "tcp=127.0.0.1:0", "name=two", "tls_verify_peer"];
    let missing = ctl(&words);
    assert!(one_line(&missing.stderr).contains("--tls-certificates"), "{missing:?}");
    let added = ctl(&[&words[..], &[&format!("tls_certificates={pki}")]].concat());
    assert_eq!((added.stdout.as_str(), added.code), ("two\n", Some(0)), "{added:?}");
    let disks = ctl(&["disks"]).stdout;
    assert_eq!(disks.lines().count(), 2, "{disks}");
    for line in disks.lines() {
        let uri = line.rsplit(' ').next().unwrap();
        client("nbdinfo", &["--size", &format!("{uri}?tls-certificates={pki}")]);
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn what_is_wrong_with_them_is_told_in_one_line() {
    let Some(keys) = Keys::new() else { return };
    let socket = keys.text("socket");
    let told = |arguments: &[&str], code: i32, part: &str| {
        // A server that should not have begun is no reason to wait for ever.
        let mut command = Command::new("timeout");
        let done = finish(command.args(["30", command::PATH, "disk", "--size", "1M"]).args(arguments));
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        assert!(one_line(&done.stderr).contains(part), "{part}: {}", done.stderr);
        assert!(!Path::new(&socket).exists());
    };
    let pki = keys.text("pki");
    let with = |part: &str| {
        let options = ["--unix", &socket, "--tls-verify-peer", "--tls-certificates", &pki];
        told(&options, 125, part);
        told(&options, 125, &format!("--tls-certificates {pki}: "));
    };
    told(&["--unix", &socket, "--tls-verify-peer"], 2, "--tls-certificates");
    told(&["--unix", &socket, "--no-tls"], 2, "--no-tls");
    told(&["--vhost-user", &socket, "--tls-certificates", &pki], 2, "--tcp");
    told(&["--tcp", "127.0.0.1:0", "--no-tls", "--tls-certificates", &pki], 2, "--no-tls");
    told(&["--unix", &socket, "--tls-certificates", "/no/such"], 125, "server-cert.pem: No such file");
    let instead = |name: &str, bytes: &[u8], part: &str| {
        let path = keys.path("pki").join(name);
        let before = fs::read(&path).ok();
        fs::write(&path, bytes).unwrap();
        with(part);
        before.map_or_else(|| fs::remove_file(&path), |bytes| fs::write(&path, bytes)).unwrap();
    };
    let client_key = fs::read(keys.path("pki/client-key.pem")).unwrap();
    let certificate = fs::read(keys.path("pki/server-cert.pem")).unwrap();
    let half = &certificate[..certificate.len() / 2];
    instead("server-key.pem", &client_key, "server-cert.pem, server-key.pem: ");
    instead("server-key.pem", &certificate, "server-key.pem: no private key without a password");
    instead("server-cert.pem", &client_key, "server-cert.pem: no certificate");
    instead("server-cert.pem", half, "server-cert.pem: no certificate");
    instead("server-cert.pem", b"\xff\x00", "server-cert.pem: no certificate");
    instead("ca-cert.pem", b"", "ca-cert.pem: no certificate");
    instead("ca-crl.pem", b"nothing", "ca-crl.pem: no list of revoked certificates");
    let wrong = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    instead("ca-cert.pem", wrong, "ca-cert.pem: ");
    instead("server-cert.pem", wrong, "server-cert.pem");
    fs::remove_file(keys.path("pki/ca-cert.pem")).unwrap();
    with("ca-cert.pem: No such file");
}
