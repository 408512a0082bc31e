//! Descriptors over unix sockets, which neither the standard library nor tokio sends: `sendmsg` and `recvmsg` with `SCM_RIGHTS`.

#![expect(unsafe_code, reason = "sendmsg and recvmsg with control messages; the bounds are stated at each use")]

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Most descriptors of one message; the kernel drops further ones and flags that.
const MOST: usize = 4;

/// Room for a control message of [`MOST`] descriptors, aligned as its header must be.
#[repr(C)]
union Control {
    bytes: [u8; 64],
    _aligned: libc::cmsghdr,
}

/// Bytes of control messages with `count` descriptors.
const fn space(count: usize) -> u32 {
    // SAFETY: only arithmetic on its argument.
    unsafe { libc::CMSG_SPACE((count * mem::size_of::<RawFd>()) as u32) }
}

const _: () = assert!(space(MOST) as usize <= mem::size_of::<Control>());

/// Returns the effective user of this process.
pub(super) fn own_user() -> u32 {
    // SAFETY: it has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends the beginning of `pieces`, with `pass` attached to the first byte, without waiting. Returns the number of bytes sent; if it is
/// not zero, the descriptor is on its way.
pub(super) fn send(socket: BorrowedFd<'_>, pieces: &[IoSlice<'_>], pass: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut control = Control { bytes: [0; 64] };
    // SAFETY: all zeros is a message header without name, pieces and control.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    // `IoSlice` has the layout of `iovec`, and sendmsg does not write to it.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _;
    if let Some(pass) = pass {
        message.msg_control = ptr::from_mut(&mut control).cast();
        message.msg_controllen = space(1) as _;
        // SAFETY: `msg_control` points to `msg_controllen` bytes that hold one header and one descriptor: `space(1)` is within
        // `Control`, which is aligned for the header. The first header is therefore there, and its data has room for the descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(mem::size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(pass.as_raw_fd());
        }
    }
    // SAFETY: the header and all that it points to live and stay in place during the call.
    let sent =
        unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into `bytes` without waiting. Returns the number of bytes, 0 at the end. Received descriptors are added to `passed`.
///
/// # Errors
/// The kernel's; `InvalidData` if more than [`MOST`] descriptors came at once, or if this process may open no more.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], passed: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = Control { bytes: [0; 64] };
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a message header without name, pieces and control.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = ptr::from_mut(&mut control).cast();
    message.msg_controllen = space(MOST) as _;
    // SAFETY: the header points to one piece, which is all of `bytes`, and to `space(MOST)` bytes within `Control`; both live and
    // stay in place during the call, and nothing else refers to them.
    let received =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel wrote `msg_controllen` bytes of whole control messages, which the macros walk and stay within. Each
    // descriptor in them is open and is owned by nobody else: it was made by this call.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for number in 0..bytes / mem::size_of::<RawFd>() {
                    passed.push(OwnedFd::from_raw_fd(data.add(number).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "descriptors were lost: too many in one message, or too many open in this process",
        ));
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        let pieces = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
        assert_eq!(send(one.as_fd(), &pieces, Some(file.as_fd())).unwrap(), 3);
        assert_eq!(send(one.as_fd(), &[IoSlice::new(b"d")], None).unwrap(), 1);
        let (mut bytes, mut passed) = ([0; 16], Vec::new());
        let first = receive(other.as_fd(), &mut bytes, &mut passed).unwrap();
        assert_eq!((&bytes[..first], passed.len()), (&b"abc"[..], 1));
        let mut received = File::from(passed.remove(0));
        received.rewind().unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        assert_eq!(receive(other.as_fd(), &mut bytes, &mut passed).unwrap(), 1);
        let error = receive(other.as_fd(), &mut bytes, &mut passed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(one);
        assert_eq!((receive(other.as_fd(), &mut bytes, &mut passed).unwrap(), passed.len()), (0, 0));
    }
}
