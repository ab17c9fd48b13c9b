"""conv8: a core for int8 convolutions that is driven by JSON documents; brought to the farm by its own code generator.

The core takes images as [n, height, width, channels], sums in int32, rescales and stores int8. Output channels come
in blocks. A document says the sizes of one layer and how to walk it; weights, biases and factors are arrays.
"""

import math

import numpy as np

from farm.accel import Accelerator
from farm.graph import JsonCode, Pattern, constant, op, optional, wildcard

LANES = 8  # output channels that the core computes at once, at least

RUNTIME = r"""
#include <stdint.h>

static int number(const char *text, const char *name) {  // what "name": says
  for (; *text; text++) {
    int i = 0;
    while (name[i] && text[i] == name[i]) i++;
    if (!name[i] && text[i] == '"' && text[i + 1] == ':' && text[-1] == '"') {
      int sign = text[i + 2] == '-' ? -1 : 1, value = 0;
      for (text += i + 2 + (sign < 0); *text >= '0' && *text <= '9'; text++) value = value * 10 + *text - '0';
      return sign * value;
    }
  }
  return 0;
}

static int8_t rescaled(int32_t sum, int64_t multiplier, int shift, int zero, int low, int high) {
  int64_t value = (sum * multiplier + ((int64_t)1 << shift >> 1)) >> shift;
  value = value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value;
  value += zero;
  value = value < low ? low : value;
  return value > high ? high : value;
}

void run(const char *document, const void *const *inputs, void *const *outputs) {
#define FIELD(name) const int name = number(document, #name)
  FIELD(n); FIELD(height); FIELD(width); FIELD(channels); FIELD(kernel_h); FIELD(kernel_w); FIELD(stride_h);
  FIELD(stride_w); FIELD(pad_h); FIELD(pad_w); FIELD(out_h); FIELD(out_w); FIELD(out_channels); FIELD(zero);
  FIELD(low); FIELD(high);
  const int8_t *x = inputs[0], *w = inputs[1];  // w: [block, kernel_h, kernel_w, channels, BLOCK]
  const int32_t *bias = inputs[2], *multiplier = inputs[3], *shift = inputs[4];
  int8_t *y = outputs[0];
  const int taps = kernel_h * kernel_w * channels;
  for (int b = 0; b < out_channels / BLOCK; b++)
    for (int at = 0; at < n * out_h; at++)
      for (int first = 0; first < out_w; first += COLUMNS) {  // COLUMNS places share each load of weights
        int32_t sums[COLUMNS][BLOCK];
        for (int p = 0; p < COLUMNS; p++)
          for (int o = 0; o < BLOCK; o++) sums[p][o] = bias[b * BLOCK + o];
        for (int r = 0; r < kernel_h; r++) {
          const int row = at % out_h * stride_h - pad_h + r;
          if (row < 0 || row >= height) continue;
          for (int s = 0; s < kernel_w; s++) {
            const int8_t *weights = w + ((int64_t)b * taps + (r * kernel_w + s) * channels) * BLOCK;
            for (int p = 0; p < COLUMNS; p++) {
              const int column = (first + p) * stride_w - pad_w + s;
              if (column < 0 || column >= width || first + p >= out_w) continue;
              const int8_t *pixel = x + (((int64_t)(at / out_h) * height + row) * width + column) * channels;
              for (int c = 0; c < channels; c++)
                for (int o = 0; o < BLOCK; o++) sums[p][o] += pixel[c] * weights[c * BLOCK + o];
            }
          }
        }
        for (int p = 0; p < COLUMNS && first + p < out_w; p++)
          for (int o = 0; o < BLOCK; o++) {
            const int k = b * BLOCK + o;
            y[((int64_t)at * out_w + first + p) * out_channels + k] =
                rescaled(sums[p][o], multiplier[k], shift[k] & 63, zero, low, high);
          }
      }
}
"""


def check(match):
    """Return why the core cannot do a layer; None if it can."""
    x, weight, bias = (match.type_of(name) for name in ("x", "weight", "bias"))
    conv, scaled = match.node("conv").attributes, match.node("scaled").attributes
    outputs, zeros = weight.shape[-1], x.quantisation.zero_points if x.quantisation else ()
    refusals = {
        f"it multiplies int8, not {x.dtype}": str(x.dtype) != "int8",
        f"layout {conv['layout']}; it does NHWC": conv["layout"] != "NHWC",
        f"{conv['groups']} groups; it does all channels at once": conv["groups"] != 1,
        f"dilation {conv['dilation']}; it has none": conv["dilation"] != (1, 1),
        f"{outputs} output channels; it does {LANES} at a time": outputs % LANES,
        f"bias {bias.shape}; it adds one number for each output channel": bias.shape != (outputs,),
        f"result {scaled['dtype']}; it stores int8": scaled["dtype"] != "int8",
        f"factors on axis {scaled['axis']}; it has one each output channel": scaled["axis"]
        not in (-1, 3),
        f"{match.value('x')} has a zero point; around an image it reads zeros": any(zeros),
    }
    return next((why for why, holds in refusals.items() if holds), None)


class Conv8:
    """What `farm.graph` asks: patterns, knobs and code."""

    name = "conv8"
    joins = False  # a document says one layer
    knobs = {"block": (8, 16, 32), "columns": (1, 2, 4, 7, 8)}  # noqa: RUF012

    @property
    def patterns(self):
        """Convolution, bias, rescaling and perhaps limits: one unit, so that its sums never leave the core."""
        conv = op("conv2d", wildcard("x"), constant("weight"), name="conv")
        total = op("add", conv, constant("bias"))
        scaled = op("requantize", total, constant("multiplier"), constant("shift"), name="scaled")
        return [Pattern("layer", optional("clip|relu", scaled, name="limits"), 10, check)]

    def compile(self, region, options):
        """Return the document of a layer, and its arrays as the core wants them."""
        (match,) = region.matches
        weight, attributes = match.constant("weight"), match.node("conv").attributes
        n, height, width, channels = match.type_of("x").shape
        kernel_h, kernel_w, _, outputs = weight.shape
        block = math.gcd(options["block"], outputs)
        packed = np.moveaxis(weight.reshape(*weight.shape[:3], outputs // block, block), 3, 0)
        limits = match.node("limits") if match.has("limits") else None
        clip = limits.attributes if limits and limits.operator == "clip" else {}
        low, high = clip.get("low", 0 if limits else -128), clip.get("high", 127)
        (stride_h, stride_w), (pad_h, pad_w) = attributes["stride"], attributes["padding"]
        _, out_h, out_w, _ = match.type_of("conv").shape
        document = {"n": n, "height": height, "width": width, "channels": channels, "kernel_h": kernel_h,
                    "kernel_w": kernel_w, "stride_h": stride_h, "stride_w": stride_w, "pad_h": pad_h, "pad_w": pad_w,
                    "out_h": out_h, "out_w": out_w, "out_channels": outputs, "low": low, "high": high,
                    "zero": match.node("scaled").attributes["zero_point"]}  # fmt: skip
        arrays = (packed, *(match.constant(name) for name in ("bias", "multiplier", "shift")))
        tiles = (f"-DBLOCK={block}", f"-DCOLUMNS={options['columns']}")
        return JsonCode(document, RUNTIME, arrays, tiles)


BACKEND = Conv8()
CONV8 = Accelerator(name="conv8", timing="native", backend=BACKEND)
