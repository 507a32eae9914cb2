//! The designs of the product, which are put together here and nowhere else.

use crate::behind::Behind;
use crate::designs;
use crate::through::Through;

designs! {
    /// The designs of the product.
    pub Stock { Through => Through, Behind => Behind }
}
