"""Make a release: one version in all files, the checks before it, all its files, and the push to a registry.

    make release ARGS="version 0.3.0"     write the version into every file that names it, and head the changelog
    make release ARGS=base                write the digest of the image's base into hack/base-image.txt
    make release ARGS=check               what a release needs of this commit, without building
    make release ARGS="build --registry ghcr.io/OWNER"     make every file of the release in dist/release
    make release ARGS="push --registry ghcr.io/OWNER"      push the image and the chart of dist/release

docs/project.md has the steps, and how anyone verifies a release.
"""
