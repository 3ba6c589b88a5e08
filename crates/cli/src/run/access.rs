//! Whether this user may use userfaultfd, without which no page can be brought back.

use crate::failure::Failure;
use ramfold_pager::UffdError;

/// Whether this kernel can move pages; else they have to be copied. Tries as the preload library will.
pub fn check() -> Result<bool, Failure> {
    ramfold_pager::kernel_can_move().map_err(|error| {
        let why = match error {
            UffdError::Unsupported(_) => {
                "this kernel has no userfaultfd (it needs Linux 5.7 or later, built with it)"
            }
            UffdError::NotPermitted => {
                "this user may not use it (run as root or with CAP_SYS_PTRACE, or have the administrator set \
                 sysctl vm.unprivileged_userfaultfd=1, or make /dev/userfaultfd accessible)"
            }
        };
        Failure::failed(format!("userfaultfd: {why}"))
    })
}
