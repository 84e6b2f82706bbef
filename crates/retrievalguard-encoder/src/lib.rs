//! From files to embeddings: pictures, data sets, the model contract and the engines that run encoders.
