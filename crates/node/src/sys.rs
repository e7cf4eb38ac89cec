//! The only module of this crate that may use `unsafe`; all it exports is safe to call.
#![allow(unsafe_code)]

/// Configures the C allocator to keep few arenas and to return freed memory early.
///
/// glibc makes up to eight arenas per core, and each keeps its memory: an idle server would hold
/// several times the memory it needs. Call this before the first thread starts. It does nothing on
/// systems with another C library.
pub fn frugal_allocator() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [(libc::M_ARENA_MAX, 2), (libc::M_TRIM_THRESHOLD, 512 << 10)] {
        // SAFETY: `mallopt` takes two integers and changes settings of the allocator under its
        // own lock; any value is allowed, and a refused one is reported by a 0 that is of no
        // interest: the server then merely holds more memory.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Returns freed memory to the system: after a burst, or after start-up.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes the allocator's own locks and touches only memory that is
    // already free; it may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Releases the pages of this program's code, most of which only the start needs. Code that is
/// needed again comes from the page cache, in a few microseconds for each 64 KiB.
///
/// Only code is released: data that the loader has written (relocated constants) cannot be read
/// again from the file.
pub(crate) fn let_go_of_code() {
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (start, end) in maps.lines().filter_map(|line| code_of(line, &program)) {
        // SAFETY: the kernel has just listed this range as a mapping of a file that can be executed
        // and not written (`r-xp`): no page of it differs from the file, which stays open as the
        // running program, so each access reads the same bytes as before. Nothing unmaps it
        // meanwhile: this program's code is never unloaded.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// The first address and the end of a line of `/proc/self/maps`, if the line is for this program's
/// code.
fn code_of(line: &str, program: &std::path::Path) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    if fields.next()? != "r-xp" || std::path::Path::new(fields.nth(3)?) != program {
        return None;
    }
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn released_code_is_loaded_again_when_needed() {
        let program = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let code: Vec<_> = maps.lines().filter_map(|line| super::code_of(line, &program)).collect();
        assert!(!code.is_empty(), "{maps}");
        let here = super::let_go_of_code as fn() as usize;
        assert!(code.iter().any(|(start, end)| (*start..*end).contains(&here)), "{code:x?}");
        super::let_go_of_code();
        assert_eq!(format!("{:>5}", 7), "    7");
        assert_eq!(super::code_of("00-10 rw-p 0 0:0 0 /x", "/x".as_ref()), None);
        assert_eq!(super::code_of("00-10 r-xp 0 0:0 0 /y", "/x".as_ref()), None);
        assert_eq!(super::code_of("00-10 r-xp 0 0:0 0 /x", "/x".as_ref()), Some((0, 16)));
    }

    #[test]
    fn allocation_continues_after_the_allocator_was_configured() {
        super::frugal_allocator();
        let big = vec![1_u8; 8 << 20];
        drop(big);
        super::give_back_memory();
        assert_eq!(vec![7_u8; 1 << 20].iter().map(|b| u64::from(*b)).sum::<u64>(), 7 << 20);
    }
}
