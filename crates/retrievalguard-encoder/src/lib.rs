//! From files to embeddings: pictures, data sets, the model config and the engines that run encoders.

pub mod check;
pub mod dataset;
pub mod doctor;
pub mod engine;
pub mod experiment;
pub mod graph;
pub mod model_config;
pub mod picture;
pub mod pipeline;
pub mod protobuf;
pub mod recall;
pub mod resize;
pub mod run;
pub mod synthetic;
pub mod table;
pub mod work;
