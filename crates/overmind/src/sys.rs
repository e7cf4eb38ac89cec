//! The only module of this crate that may use `unsafe`; all it exports is safe to call.
#![allow(unsafe_code)]

/// Tells the C allocator to keep few arenas and to give freed memory back early.
///
/// glibc makes up to eight arenas per core, and each keeps what it once used: an idle server
/// would hold several times the memory it needs. Call it before the first thread starts. Does
/// nothing on systems with another C library.
pub(crate) fn frugal_allocator() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [(libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, 512 << 10)] {
        // SAFETY: `mallopt` takes two integers and changes settings of the allocator under its
        // own lock; any value is allowed, and a refused one is reported by a 0 that is of no
        // interest: the server then merely holds more memory.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Gives memory that was freed back to the system: after a burst, or once start-up is done.
pub(crate) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes the allocator's own locks and touches only memory that is
    // already free; it may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn allocation_goes_on_after_the_allocator_was_told() {
        super::frugal_allocator();
        let big = vec![1_u8; 8 << 20];
        drop(big);
        super::give_back_memory();
        assert_eq!(vec![7_u8; 1 << 20].iter().map(|b| u64::from(*b)).sum::<u64>(), 7 << 20);
    }
}
