//! The constructor of this library makes the pager.
//!
//! It runs while the first library loads this one: there is one thread then, signals are blocked, and the program's
//! calls do not come here yet; what is called meanwhile is internal and asks for no pager. So no `Once` is needed. If
//! there can be no pager the program ends: it would pass its limit.

use ramfold_pager::Pager;

use crate::ending::refuse;
use crate::heap::{self, redirected};
use crate::tls::Internal;
use crate::{
    cores, descriptors, environ, fork, futexes, host, libc_data, loader, management, namespaces, pager,
    streams, threads,
};

fn make_pager() {
    let made = environ::config()
        .map_err(|error| error.to_string())
        .and_then(|config| Pager::new(config, &host::Program).map_err(|error| error.to_string()));
    pager::set(made.unwrap_or_else(|why| refuse(&why)));
}

/// Finds the functions of libc that are needed later: to look for them then would be to wait for the dynamic linker,
/// which a signal handler may jump out of, or which waits for a page.
fn find_all() {
    let _internal = Internal::enter();
    cores::find();
    descriptors::find();
    fork::find();
    futexes::find();
    heap::find();
    libc_data::find();
    namespaces::find();
    streams::find();
    threads::find();
}

/// Runs while the library is loaded, with one thread and signals blocked.
extern "C" fn constructor() {
    // At once: what is called here would change to another stack and back a dozen times.
    pager::internally(|| {
        heap::configure();
        loader::find();
        make_pager();
    });
    if loader::redirect(redirected::for_linker(), redirected::for_libc()).is_err() {
        refuse("the program has a malloc of its own, and this dynamic linker cannot do without it");
    }
    find_all();
    threads::register_main();
    management::allow();
}

/// The first library calls it after the program's own destructors.
#[unsafe(export_name = "ramfold_publish")]
extern "C" fn publish() {
    management::with_pager(Pager::publish);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
