//! Protocol buffers, the format of ONNX files and of TensorBoard's events: fields without a schema.

mod read;
mod write;

pub(crate) use read::{Message, Payload};
pub use write::MessageWriter;
