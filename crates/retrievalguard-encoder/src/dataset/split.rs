//! The parts of a data set, by name.

use std::fmt;
use std::str::FromStr;

use super::{DatasetError, Format};

/// The part of the data set that a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// For training the encoder.
    Train,
    /// For choosing among encoders.
    Validation,
    /// For the final numbers.
    Test,
}

/// A part of a data set as users and papers name it.
///
/// | name | pictures of | classes in the published set |
/// |---|---|---|
/// | `train`, `validation`, `test` | whatever the format marks so | |
/// | `cub/train` | CUB-200-2011, classes 1–100 | 100 |
/// | `cub/test` | CUB-200-2011, classes 101–200 | 100 |
/// | `cars/train` | CARS196, classes 1–98 | 98 |
/// | `cars/test` | CARS196, classes 99–196 | 98 |
/// | `sop/train` | Online Products, `Ebay_train.txt` | 11,318 |
/// | `sop/test` | Online Products, `Ebay_test.txt` | 11,316 |
/// | `sop/paper` | Online Products, the first 1,000 classes of `Ebay_test.txt` | 1,000 |
///
/// The paper tests on 1,000 of the test classes of Online Products without saying which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NamedSplit {
    /// Every record marked [`Split::Train`].
    Train,
    /// Every record marked [`Split::Validation`].
    Validation,
    /// Every record marked [`Split::Test`].
    Test,
    /// CUB-200-2011, classes 1–100.
    CubTrain,
    /// CUB-200-2011, classes 101–200.
    CubTest,
    /// CARS196, classes 1–98.
    CarsTrain,
    /// CARS196, classes 99–196.
    CarsTest,
    /// Stanford Online Products, training list.
    ProductsTrain,
    /// Stanford Online Products, test list.
    ProductsTest,
    /// Stanford Online Products, the first 1,000 classes of the test list.
    ProductsPaper,
}

impl NamedSplit {
    /// Every split there is.
    pub const ALL: [Self; 10] = [
        Self::Train,
        Self::Validation,
        Self::Test,
        Self::CubTrain,
        Self::CubTest,
        Self::CarsTrain,
        Self::CarsTest,
        Self::ProductsTrain,
        Self::ProductsTest,
        Self::ProductsPaper,
    ];

    /// The name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Test => "test",
            Self::CubTrain => "cub/train",
            Self::CubTest => "cub/test",
            Self::CarsTrain => "cars/train",
            Self::CarsTest => "cars/test",
            Self::ProductsTrain => "sop/train",
            Self::ProductsTest => "sop/test",
            Self::ProductsPaper => "sop/paper",
        }
    }

    /// The mark that its records bear.
    pub fn split(self) -> Split {
        match self {
            Self::Train | Self::CubTrain | Self::CarsTrain | Self::ProductsTrain => Split::Train,
            Self::Validation => Split::Validation,
            Self::Test | Self::CubTest | Self::CarsTest | Self::ProductsTest | Self::ProductsPaper => {
                Split::Test
            }
        }
    }

    /// The format of the data set it belongs to, if it belongs to one.
    pub fn format(self) -> Option<Format> {
        match self {
            Self::Train | Self::Validation | Self::Test => None,
            Self::CubTrain | Self::CubTest => Some(Format::Cub),
            Self::CarsTrain | Self::CarsTest => Some(Format::Cars),
            Self::ProductsTrain | Self::ProductsTest | Self::ProductsPaper => Some(Format::OnlineProducts),
        }
    }
}

impl fmt::Display for NamedSplit {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for NamedSplit {
    type Err = DatasetError;

    fn from_str(text: &str) -> Result<Self, DatasetError> {
        Self::ALL
            .into_iter()
            .find(|split| split.name() == text)
            .ok_or_else(|| DatasetError::SplitName { text: text.to_owned() })
    }
}
