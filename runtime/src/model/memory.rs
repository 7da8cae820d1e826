//! How the C allocator treats large tensors.

/// Keeps freed blocks of up to 1 GiB in the process instead of giving them back to the kernel.
///
/// glibc maps every block above a threshold anew and unmaps it when freed, so each large tensor
/// of a forward pass is faulted in page by page again. Call once at the start of `main`, before
/// other threads. Does nothing where the C library is not glibc.
pub fn keep_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const BYTES: libc::c_int = 1 << 30;
        #[expect(unsafe_code, reason = "mallopt has no safe binding")]
        // SAFETY: mallopt only sets two numbers of the allocator.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, BYTES);
            libc::mallopt(libc::M_TRIM_THRESHOLD, BYTES);
        }
    }
}
