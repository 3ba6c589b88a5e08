//! The exported names of exec.c, and what it keeps: a child stays under the limit whatever environment it is given.
//!
//! The work is done in C, where an environment can be built on the stack and arguments can vary in number; each name
//! here is a jump to it, so that arguments arrive as they were passed.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;

use crate::environ;

const MOST: usize = 16;

unsafe extern "C" {
    static mut ramfold_kept: [*const c_char; MOST + 1];
}

/// Remembers the variables to keep, and this library's own path for LD_PRELOAD. Copies: programs overwrite the
/// place where the originals are.
pub fn keep_environment() {
    let settings = environ::strings().map(CStr::to_bytes).filter(|s| s.starts_with(b"RAMFOLD_"));
    let preload = own_path().map(|path| [b"LD_PRELOAD=", path.to_bytes()].concat());
    let kept = preload.into_iter().chain(settings.map(<[u8]>::to_vec)).take(MOST);
    for (i, string) in kept.filter_map(|bytes| CString::new(bytes).ok()).enumerate() {
        // SAFETY: there is one thread yet, and the list keeps its null at the end.
        unsafe { ramfold_kept[i] = string.into_raw() };
    }
}

/// The path that the dynamic linker loaded this library from.
fn own_path() -> Option<&'static CStr> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    let own = keep_environment as fn();
    // SAFETY: an address in this library; the path lives as long as the library is loaded.
    unsafe {
        (libc::dladdr(own as *const c_void, info.as_mut_ptr()) != 0)
            .then(|| CStr::from_ptr(info.assume_init().dli_fname))
    }
}

macro_rules! jump {
    ($($name:ident => $target:ident,)*) => {
        $(
            mod $name {
                unsafe extern "C" {
                    pub fn $target();
                }
            }

            /// Jumps to the function in C.
            ///
            /// # Safety
            /// As in C.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!("jmp {}", sym $name::$target);
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!("b {}", sym $name::$target);
            }
        )*
    };
}

pub(crate) use jump;

jump! {
    execve => ramfold_execve,
    execveat => ramfold_execveat,
    execv => ramfold_execv,
    execvp => ramfold_execvp,
    execvpe => ramfold_execvpe,
    fexecve => ramfold_fexecve,
    execl => ramfold_execl,
    execlp => ramfold_execlp,
    execle => ramfold_execle,
    posix_spawn => ramfold_posix_spawn,
    posix_spawnp => ramfold_posix_spawnp,
}
