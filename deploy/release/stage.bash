# What the Debian package and a release are made of, for the scripts that build them: they
# source this file. The same commit, Go version and architecture give the same bytes,
# wherever and whenever.
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# What the bytes must not depend on.
export TZ=UTC LC_ALL=C GOFLAGS=-mod=readonly GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0 GOOS=linux
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

commit=$(git rev-parse --short=12 HEAD)
# v1.2.3 is 1.2.3, five commits later it is 1.2.3+5.g<commit>; before the first version it
# is 0~<time>.<commit>. dpkg orders them in this way, too.
if described=$(git describe --tags --long --abbrev=12 --match 'v[0-9]*' 2>/dev/null); then
	tag=${described%-*-g*}
	since=${described#"$tag"-}
	version=${tag#v}
	[[ $since == 0-* ]] || version+=+${since/-/.}
	version=${version//-/\~} # 1.2.3-rc1 comes before 1.2.3
else
	version=0~$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%dT%H%M%S).$commit
fi
if [[ -n $(git status --porcelain --untracked-files=no) ]]; then
	version+=+dirty
	commit+=+dirty
fi
host=$(go env GOHOSTARCH)

# stage DIRECTORY fills it with the binary for GOARCH and all that goes along with it.
stage() {
	local to=$1
	mkdir -p "$to/man" "$to/doc"
	compile "$to/weft"
	bill "$to/weft" >"$to/doc/weft.cdx.json"

	GOARCH=$host compile "$to/native" # writes the pages, which are the same for all
	"$to/native" man "$to/man"
	for shell in bash zsh fish; do
		"$to/native" completion "$shell" >"$to/completion.$shell"
	done

	# The links of the README lead to files that the package lacks.
	sed -E "s#\]\(([A-Za-z][^):]*)\)#](https://github.com/samuelhu324-dev/weft/blob/${commit%+dirty}/\1)#g" README.md >"$to/doc/README.md"
	install -m 0644 CHANGELOG.md "$to/doc/changelog"
	third_party >"$to/doc/third-party"
	gzip -9 -n "$to"/man/* "$to"/doc/changelog "$to"/doc/third-party
}

compile() {
	go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version -X main.commit=$commit" -o "$1" ./cmd/weft
}

# bill prints the bill of materials of a binary.
bill() {
	GOARCH=$host go -C tools/supply run ./sbom -version "$version" "$1"
}

# third_party prints the licences of what is linked into the binary.
third_party() {
	printf '==== Go %s\n\n' "$(go env GOVERSION)"
	cat "$(go env GOROOT)/LICENSE"
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/weft | sort -u |
		while read -r path release dir; do
			printf '==== %s %s\n\n' "$path" "$release"
			find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'notice*' -o -iname 'copying*' \) | sort | xargs -r -d '\n' cat
			printf '\n'
		done
}

# deb STAGE FILE packs what stage has made.
deb() {
	local from=$1
	install -m 0644 deploy/deb/README.Debian deploy/deb/copyright deploy/postgres/roles.sql "$from/doc/"
	gzip -9 -n >"$from/doc/changelog.Debian.gz" <<-END
		weft ($version) unstable; urgency=medium

		  * Built from commit $commit; changelog.gz says what is new.

		 -- The weft authors <weft@users.noreply.github.com>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
	END
	WEFT_ARCH=$(go env GOARCH) WEFT_STAGE=$from WEFT_VERSION=$version GOARCH=$host \
		go tool -modfile=tools/nfpm/go.mod nfpm package --config deploy/deb/nfpm.yaml --packager deb --target "$2" >&2
}
