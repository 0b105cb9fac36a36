"""`load_weights` of an emitted module: the weights of a checkpoint, each device's part read by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.backends.jax.source_text import broken, tuple_text


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, or one for each `{layer}` (or `{2*layer+1}`) and `{expert}` of its name.

    Cut to `cut`, of each dimension of which `take` has a range, an index or None for all, and transposed by `order`, it
    has the weight's own order; `shape` is what it then counts as, with the blocks of a packed dimension as one.
    """

    tensor: str
    cut: tuple[int, ...]
    take: tuple[tuple[int, int] | int | None, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightRecipe:
    """Where a weight lies: its tensors, joined along `axis` where they are several, and for each word of their names
    the weight's dimension that it numbers."""

    tensors: tuple[StoredTensor, ...]
    stacked: Mapping[str, int]
    axis: int = 0


def loading_lines(recipes: Mapping[str, WeightRecipe], edges: ProgramEdges, place: str) -> list[str]:
    """TENSORS, and the functions that read what it says. `place` is how a weight lies, as source text."""
    lines = [
        "",
        "",
        "# weight: (its tensors: (name, cut to this shape, of which this is taken, transposed so, as this shape),",
        "# the dimension that each word of the names numbers, and the one along which tensors are joined)",
        "TENSORS = {",
    ]
    stored = {value.name: edges.stored(value) for value in edges.program.weights}
    for name, recipe in recipes.items():
        factors = stored[name].factors
        axes = {word: sum(len(each) for each in factors[:dim]) for word, dim in recipe.stacked.items()}
        tensors = [
            f"({part.tensor!r}, {_numbers(part.cut)}, {_taken(part)}, {_numbers(part.order)}, {_numbers(part.shape)})"
            for part in recipe.tensors
        ]
        lines.extend(broken(f"{name!r}: ({tuple_text(tensors)}, {axes!r}, {recipe.axis}),", "    "))
    text = _LOADING.replace("'''", '"""').replace("PLACE", place)
    return [*lines, "}", *text.rstrip().splitlines()]


def _numbers(values: tuple[int, ...]) -> str:
    return tuple_text([str(value) for value in values]) if values else "()"


def _taken(part: StoredTensor) -> str:
    words = [
        "slice(None)" if item is None else str(item) if isinstance(item, int) else f"slice({item[0]}, {item[1]})"
        for item in part.take
    ]
    return "..." if all(item is None for item in part.take) else tuple_text(words)


_LOADING = r"""

def open_tensors(folder):
    '''The tensors of a folder's safetensors files by name: file, number format, shape, and where the bytes begin.'''
    formats = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16}
    formats |= {'I64': np.int64, 'I32': np.int32, 'BOOL': np.bool_}
    found, folder = {}, pathlib.Path(folder)
    index, single = folder / 'model.safetensors.index.json', folder / 'model.safetensors'
    if index.is_file():  # another copy may lie beside the files that it lists
        listed = json.loads(index.read_text(encoding='utf-8'))['weight_map'].values()
        paths = [folder / pathlib.Path(name).name for name in sorted(set(listed))]
    else:
        paths = [single] if single.is_file() else sorted(folder.glob('*.safetensors'))
    for path in paths:
        with path.open('rb') as file:
            length = int.from_bytes(file.read(8), 'little')
            if length > path.stat().st_size - 8:
                raise ValueError(f'{path} is no safetensors file, or a part of one')
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != '__metadata__':
                begin = 8 + length + entry['data_offsets'][0]
                found[name] = (path, formats.get(entry['dtype']), tuple(entry['shape']), begin)
    return found


def numbered(name, words):
    '''A tensor's name with numbers in the place of its words.'''

    def number(match):
        times, word, plus = match.groups()
        return str(int(times or 1) * words[word] + int(plus or 0))

    return re.sub(r'{(?:(\d+)[*])?(layer|expert)(?:[+](\d+))?}', number, name)


def read_tensor(tensors, name, cut, take, order, shape):
    '''A tensor as a weight, or a part of one, has it; nothing is copied that is not asked for.'''
    if name not in tensors and name.partition('.')[2] in tensors:
        name = name.partition('.')[2]  # as in a checkpoint of the model without its head
    if name not in tensors:
        raise ValueError(f'the folder has no tensor {name}')
    path, dtype, stored, begin = tensors[name]
    if dtype is None or np.prod(stored, dtype=int) != np.prod(cut, dtype=int):
        raise ValueError(f'{path}: {name} is of no format that is read, or of another shape than is wanted: {stored}')
    return np.memmap(path, dtype, 'r', begin, cut)[take].transpose(order).reshape(shape)


def load_weights(folder, mesh):
    '''The weights of a checkpoint in safetensors on the mesh: the first argument of the functions.'''
    tensors, loaded = open_tensors(folder), {}
    for name, (parts, stacked, axis) in TENSORS.items():
        shape, dtype, spec = WEIGHTS[name]

        def read(index):
            box = [range(*part.indices(extent)) for part, extent in zip(index, shape)]
            inner = [i for i in range(len(shape)) if i not in stacked.values()]
            whole = [shape[i] for i in inner]
            taken = tuple(slice(box[i].start, box[i].stop) for i in inner)
            made = np.empty([len(part) for part in box], dtype)
            view = np.moveaxis(made, list(stacked.values()), range(len(stacked)))
            for numbers in itertools.product(*(box[i] for i in stacked.values())):
                words = dict(zip(stacked, numbers))
                arrays = [read_tensor(tensors, numbered(part[0], words), *part[1:]) for part in parts]
                array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
                place = tuple(n - box[i].start for n, i in zip(numbers, stacked.values()))
                view[place] = array.reshape(whole)[taken]
            return made

        loaded[name] = jax.make_array_from_callback(shape, PLACE, read)
    return loaded
"""
