"""Encoders in 8 bits, by onnxruntime's own tool."""

from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class Calibration(CalibrationDataReader):
    """Inputs as the network will see them: their ranges decide the steps of the quantised values."""

    def __init__(self, name, inputs):
        self.batches = iter([{name: values} for values in inputs])

    def get_next(self):
        return next(self.batches, None)


def quantise(path, out, name, inputs):
    """The same network with weights per channel and activations by calibrated ranges, so that no batch matters."""
    quantize_static(
        path,
        out,
        Calibration(name, inputs),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        # Without VNNI, sums of two products of full range would saturate 16 bits.
        reduce_range=True,
    )
