//! Numbers of the protocol.

pub(crate) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Of the handshake, by both sides.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
pub(crate) const NO_ZEROES: u16 = 2;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_STARTTLS: u32 = 5;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_ERR: u32 = 1 << 31;
pub(crate) const REP_ERR_UNSUP: u32 = REP_ERR | 1;
pub(crate) const REP_ERR_POLICY: u32 = REP_ERR | 2;
pub(crate) const REP_ERR_INVALID: u32 = REP_ERR | 3;
pub(crate) const REP_ERR_TLS_REQD: u32 = REP_ERR | 5;
pub(crate) const REP_ERR_UNKNOWN: u32 = REP_ERR | 6;
pub(crate) const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERR | 8;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

/// Of an export.
pub(crate) const HAS_FLAGS: u16 = 1;
pub(crate) const READ_ONLY: u16 = 1 << 1;
pub(crate) const SEND_FLUSH: u16 = 1 << 2;
pub(crate) const SEND_FUA: u16 = 1 << 3;
pub(crate) const SEND_TRIM: u16 = 1 << 5;
pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;

pub(crate) const CMD_FLAG_FUA: u16 = 1;

/// Of a part of a structured reply.
pub(crate) const CHUNK_DONE: u16 = 1;
pub(crate) const CHUNK_NONE: u16 = 0;
pub(crate) const CHUNK_DATA: u16 = 1;
pub(crate) const CHUNK_HOLE: u16 = 2;
/// This bit is set in errors.
pub(crate) const CHUNK_ERROR: u16 = 1 << 15;

/// Longest payload that every server takes.
pub(crate) const PAYLOAD_MAX: usize = 32 << 20;
/// Longest name or message: as in the protocol.
pub(crate) const STRING_MAX: usize = 4096;

pub(crate) const EPERM: i32 = 1;
pub(crate) const EIO: i32 = 5;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const ENOTSUP: i32 = 95;
