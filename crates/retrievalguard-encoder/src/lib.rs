//! From files to embeddings: pictures, data sets, the model config and the engines that run encoders.

pub mod agreement;
pub mod block_means;
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
pub mod receipt;
pub mod recommend;
pub mod resize;
pub mod run;
pub mod synthetic;
pub mod table;
pub mod views;
pub mod work;

pub use check::{EncoderCheck, ModelReport, check_model};
pub use dataset::{Dataset, DatasetError, DatasetOptions, Format, Record, RecordSet};
pub use engine::{Engine, EngineError, EngineOptions, OnnxEmbedder};
pub use graph::{Model, ModelFileError};
pub use model_config::{ModelConfig, ModelConfigError};
pub use picture::{PictureError, PictureLimits, RgbPicture};
pub use pipeline::{
    AttackReport, AttackRequest, CertifyOptions, CertifyReport, CertifyRequest, IndexReport, IndexRequest,
    PipelineError, attack, certify, index,
};
pub use recall::{Recall, RecallError, recall_at_1};
pub use run::RunDescription;
pub use table::{ResultRow, ResultTable, TableError};
