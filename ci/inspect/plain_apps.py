"""Read an app from folders that are laid out as in an APK, and from source sets."""

from __future__ import annotations

from pathlib import Path

from ci.inspect.apps import ABIS, MANIFEST, PROGRAMS, AppUnit, Kind, PackedFile, read_manifest


def read_plain(root: Path, parent: Path) -> AppUnit:
    """Return the app in an unpacked APK or AAR, or in a directory with a subdirectory per ABI."""

    def see(path: Path, abi: str = "") -> PackedFile:
        size_bytes = path.stat().st_size if path.exists() else 0
        return PackedFile(path.name, path, relative_path(root, path), size_bytes, abi)

    above = [parent.parent, *parent.parent.parents, root]
    # The nearest one: in an unpacked app, it is next to lib/, and in a source set above jniLibs/.
    manifests = [path / MANIFEST for path in above if path.is_relative_to(root)]
    manifest_path = next((path for path in manifests if path.is_file()), None)
    manifest = read_manifest(manifest_path) if manifest_path else None
    places = [(abi, parent / abi) for abi in sorted(ABIS) if (parent / abi).is_dir()]
    folders = (parent.parent / "assets", parent.parent / "res" / "raw")
    return AppUnit(
        relative_path(root, parent) or root.name,
        Kind.DIRECTORY,
        manifest,
        libraries=tuple(
            see(path, abi)
            for abi, place in places
            for path in sorted(place.iterdir())
            if path.suffix == ".so" and (path.is_symlink() or path.is_file())
        ),
        assets=tuple(
            see(path)
            for folder in folders
            if folder.is_relative_to(root)
            for path in sorted(folder.rglob("*"))
            if path.suffix in {*PROGRAMS, ".so"} and path.is_file()
        ),
    )


def relative_path(root: Path, path: Path) -> str:
    """Return the path relative to ``root`` ('' for ``root`` itself), or the whole path if it is
    outside."""
    text = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return "" if text == "." else text
