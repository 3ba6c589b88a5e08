//! The decompressor. It takes any bytes: what leads out of the input or the page gives None.

use super::{END, FAR, LEAST_ZEROS, VERSIONED, WITH_ZEROS, ZEROS};

/// How many literals came after the last instruction, which tells what an instruction below 16 is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    None,
    UpToThree,
    More,
}

/// Restores exactly `page` from exactly `data`.
pub(super) fn decode(data: &[u8], page: &mut [u8]) -> Option<()> {
    let mut reader = Reader { data, at: 0 };
    let mut writer = Writer { page, len: 0 };
    let zeros = match data {
        [VERSIONED, version @ ..=WITH_ZEROS, _, _, _, ..] => {
            reader.at = 2;
            *version == WITH_ZEROS
        }
        [VERSIONED, _, _, _, _, ..] => return None,
        _ => false,
    };
    let mut before = Before::None;
    let first = *data.get(reader.at)?;
    if first > VERSIONED {
        reader.at += 1;
        before = writer.literals(&mut reader, usize::from(first - VERSIONED))?;
    }
    loop {
        let instruction = reader.byte()?;
        let (len, distance, literals) = match instruction {
            64.. => {
                let distance = (instruction >> 2 & 7) + (reader.byte()? << 3) + 1;
                ((instruction >> 5) + 1, distance, instruction & 3)
            }
            32.. => {
                let len = 2 + reader.number(instruction, 31)?;
                let word = usize::from(reader.word()?);
                (len, (word >> 2) + 1, word & 3)
            }
            24..32 if zeros && reader.peek_word()? & ZEROS == ZEROS => {
                let literals = usize::from(reader.word()?) & 3;
                writer.zeros(LEAST_ZEROS + (reader.byte()? << 3 | instruction & 7))?;
                before = writer.literals(&mut reader, literals)?;
                continue;
            }
            16.. => {
                let len = 2 + reader.number(instruction, 7)?;
                let word = usize::from(reader.word()?);
                let distance = FAR + ((instruction & 8) << 11) + (word >> 2);
                if distance == FAR {
                    let ended =
                        data.ends_with(&END) && reader.at == data.len() && writer.len == writer.page.len();
                    return ended.then_some(());
                }
                (len, distance, word & 3)
            }
            _ if before == Before::None => {
                let len = 3 + reader.number(instruction, 15)?;
                before = writer.literals(&mut reader, len)?;
                continue;
            }
            _ => {
                let distance = (instruction >> 2) + (reader.byte()? << 2) + 1;
                match before {
                    Before::More => (3, distance + 2048, instruction & 3),
                    _ => (2, distance, instruction & 3),
                }
            }
        };
        writer.copy(len, distance)?;
        before = writer.literals(&mut reader, literals)?;
    }
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    #[inline]
    fn byte(&mut self) -> Option<usize> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(usize::from(byte))
    }

    #[inline]
    fn peek_word(&self) -> Option<u16> {
        Some(u16::from_le_bytes(self.data.get(self.at..self.at + 2)?.try_into().ok()?))
    }

    #[inline]
    fn word(&mut self) -> Option<u16> {
        let word = self.peek_word()?;
        self.at += 2;
        Some(word)
    }

    /// The number in the last bits of an instruction, of which `most` is the largest; 0 there says that it follows.
    #[inline]
    fn number(&mut self, instruction: usize, most: usize) -> Option<usize> {
        match instruction & most {
            0 => self.long(most),
            number => Some(number),
        }
    }

    fn long(&mut self, most: usize) -> Option<usize> {
        let mut number = most;
        loop {
            match self.byte()? {
                0 => number += 255,
                last => return Some(number + last),
            }
        }
    }
}

struct Writer<'a> {
    page: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    #[inline]
    fn literals(&mut self, reader: &mut Reader<'_>, len: usize) -> Option<Before> {
        /// What is copied at once, where there is room for it.
        const PIECE: usize = 16;
        let (from, to) = (reader.at, self.len);
        let end = to.checked_add(len)?;
        if len <= PIECE
            && let Some(from) = reader.data.get(from..from + PIECE)
            && let Some(to) = self.page.get_mut(to..to + PIECE)
        {
            to.copy_from_slice(from);
        } else {
            self.page.get_mut(to..end)?.copy_from_slice(reader.data.get(from..from.checked_add(len)?)?);
        }
        reader.at += len;
        self.len = end;
        Some(match len {
            0 => Before::None,
            1..=3 => Before::UpToThree,
            _ => Before::More,
        })
    }

    /// Repeats what lies `distance` before; what is written meanwhile is repeated too.
    #[inline]
    fn copy(&mut self, len: usize, distance: usize) -> Option<()> {
        const PIECE: usize = 8;
        let from = self.len.checked_sub(distance)?;
        let end = self.len.checked_add(len)?;
        let room = self.page.len();
        if end > room {
            return None;
        }
        if distance >= PIECE && end + PIECE <= room {
            let (mut from, mut to) = (from, self.len);
            while to < end {
                self.page.copy_within(from..from + PIECE, to);
                (from, to) = (from + PIECE, to + PIECE);
            }
        } else if distance == 1 {
            let byte = self.page[from];
            self.page[self.len..end].fill(byte);
        } else {
            for to in self.len..end {
                self.page[to] = self.page[to - distance];
            }
        }
        self.len = end;
        Some(())
    }

    fn zeros(&mut self, len: usize) -> Option<()> {
        let end = self.len + len;
        self.page.get_mut(self.len..end)?.fill(0);
        self.len = end;
        Some(())
    }
}
