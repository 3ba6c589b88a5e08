//! The functions behind those that this library replaces and then needs itself.
//!
//! The first library finds them (start/others.c), at the first use or earlier, without memory and without a lock.

unsafe extern "C" {
    /// The function of that name behind the first library, or null.
    pub fn ramfold_behind(name: *const std::ffi::c_char) -> *mut std::ffi::c_void;
}

/// Declares a module with the name of a C function: `get` finds the original, once.
macro_rules! function {
    (fn $name:ident($($arg:ty),*) -> $out:ty) => {
        #[allow(non_snake_case)]
        pub(crate) mod $name {
            #[allow(unused_imports)]
            use super::*;
            pub type Function = unsafe extern "C" fn($($arg),*) -> $out;
            static FOUND: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

            /// The original; `None` when this libc has no such function.
            pub fn get() -> Option<Function> {
                let mut found = FOUND.load(std::sync::atomic::Ordering::Acquire);
                if found.is_null() {
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the name ends with a zero byte.
                    found = unsafe { crate::real::ramfold_behind(name.as_ptr().cast()) };
                    FOUND.store(found, std::sync::atomic::Ordering::Release);
                }
                // SAFETY: the symbol of that name has that type, which is a nullable pointer as an Option.
                unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<Function>>(found) }
            }
        }
    };
}

/// Declares exported functions that jump to functions in C.
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

pub(crate) use {function, jump};
