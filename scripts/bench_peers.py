"""Run another optimizer with its defaults, as a command that imports nothing of egraft: `TOOL MODEL OUT`."""

import sys

import onnx


def main(tool: str, model: str, out: str) -> int:
    """0 where the tool is content with its own result."""
    if tool == "onnxslim":
        import onnxslim

        onnx.save(onnxslim.slim(onnx.load(model)), out)
        return 0
    import onnxsim

    simplified, passed = onnxsim.simplify(onnx.load(model))
    onnx.save(simplified, out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
