//! The one EXIF entry that matters for pixels.

/// Tag of the orientation in the first directory of a TIFF header.
const ORIENTATION: u16 = 0x0112;
/// Type code of a 16-bit number.
const SHORT: u16 = 3;

/// The orientation, 1 to 8, if the block is sound enough to hold one.
pub(super) fn orientation(exif: &[u8]) -> Option<u8> {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match exif.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = *exif.get(at..)?.first_chunk::<2>()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let directory = {
        let bytes = *exif.get(4..)?.first_chunk::<4>()?;
        (if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }) as usize
    };
    let entries = usize::from(short(directory)?);
    let value = (0..entries)
        .map_while(|entry| {
            let at = directory + 2 + 12 * entry;
            Some((short(at)?, short(at + 2)?, short(at + 8)?))
        })
        .find(|&(tag, kind, _)| tag == ORIENTATION && kind == SHORT)
        .map(|(_, _, value)| value)?;
    u8::try_from(value).ok().filter(|value| (1..=8).contains(value))
}

#[cfg(test)]
mod tests {
    use super::orientation;

    const LITTLE: &[u8] = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    const BIG: &[u8] = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0";

    #[test]
    fn the_orientation_is_found_in_both_byte_orders() {
        assert_eq!(orientation(LITTLE), Some(6));
        assert_eq!(orientation(BIG), Some(8));
        assert_eq!(orientation(&[b"Exif\0\0", LITTLE].concat()), Some(6));
    }

    #[test]
    fn a_truncated_or_lying_block_has_no_orientation() {
        for length in 0..20 {
            assert_eq!(orientation(&LITTLE[..length]), None, "{length} bytes");
        }
        let mut lying = LITTLE.to_vec();
        lying[4..8].fill(0xFF);
        assert_eq!(orientation(&lying), None);
        let mut nine = LITTLE.to_vec();
        nine[18] = 9;
        assert_eq!(orientation(&nine), None);
    }
}
