//! A client of a disk: the old handshake, one request at a time.

#![allow(dead_code)] // each test binary uses its part

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTIONS: u64 = u64::from_be_bytes(*b"IHAVEOPT");

pub struct Client(UnixStream);

impl Client {
    pub fn connect(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        let export_name = [OPTIONS.to_be_bytes(), (1_u64 << 32).to_be_bytes()].concat();
        stream.write_all(&export_name).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream)
    }

    fn request(&mut self, kind: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<u32> {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend(u32::from(kind).to_be_bytes());
        request.extend(7_u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(u32::try_from(len).unwrap().to_be_bytes());
        request.extend(data);
        self.0.write_all(&request)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        Ok(u32::from_be_bytes(reply[4..8].try_into().unwrap()))
    }

    /// The error, 0 if there is none.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.try_write(offset, data).unwrap()
    }

    /// The same; Err if the disk has hung up.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> io::Result<u32> {
        self.request(1, offset, data.len(), data)
    }

    /// The error, 0 if there is none.
    pub fn flush(&mut self) -> u32 {
        self.request(3, 0, 0, &[]).unwrap()
    }

    /// The error, 0 if there is none.
    pub fn trim(&mut self, offset: u64, len: usize) -> u32 {
        self.request(4, offset, len, &[]).unwrap()
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.request(0, offset, len, &[]).unwrap(), 0, "a read at {offset}");
        let mut data = vec![0; len];
        self.0.read_exact(&mut data).unwrap();
        data
    }
}
