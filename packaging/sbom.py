#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The bill of materials of a release, as SPDX 2.3 in JSON, from what meson knows of a build.
    sbom.py BUILD ARCHIVE OUT    times come from SOURCE_DATE_EPOCH"""
import datetime
import hashlib
import json
import os
import pathlib
import subprocess
import sys

build, archive, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
created = datetime.datetime.fromtimestamp(int(os.environ['SOURCE_DATE_EPOCH']), datetime.timezone.utc)
# Licences as each project states them, and how attune uses it.
KNOWN = {
    'jansson': ('MIT', 'DEPENDENCY_OF'),
    'libpng': ('libpng-2.0', 'DEPENDENCY_OF'),
    'criterion': ('MIT', 'TEST_DEPENDENCY_OF'),
    'vulkan': ('Apache-2.0 OR MIT', 'BUILD_DEPENDENCY_OF'),
}
# Not packages: the compiler's own.
PART_OF_C = {'threads', 'm', 'dl'}


def introspect(what):
    return json.loads(subprocess.run(['meson', 'introspect', what, build], check=True, capture_output=True, text=True).stdout)


def package(identifier, name, version, licence, **more):
    return {'SPDXID': identifier, 'name': name, 'versionInfo': version, 'downloadLocation': 'NOASSERTION', 'filesAnalyzed': False,
            'licenseConcluded': licence, 'licenseDeclared': licence, 'copyrightText': 'NOASSERTION', **more}


project = introspect('--projectinfo')
name, version = project['descriptive_name'], project['version']
digest = hashlib.sha256(archive.read_bytes()).hexdigest()
root = f'SPDXRef-Package-{name}'
packages = [package(root, name, version, 'MIT', packageFileName=archive.name, primaryPackagePurpose='LIBRARY',
                    checksums=[{'algorithm': 'SHA256', 'checksumValue': digest}])]
relations = [{'spdxElementId': 'SPDXRef-DOCUMENT', 'relationshipType': 'DESCRIBES', 'relatedSpdxElement': root}]
unknown = []
for found in sorted(introspect('--dependencies'), key=lambda dependency: dependency['name']):
    if found['name'] in PART_OF_C or found['version'] in ('', 'none') or any(p['name'] == found['name'] for p in packages):
        continue
    if found['name'] not in KNOWN:
        unknown.append(found['name'])
        continue
    licence, relation = KNOWN[found['name']]
    identifier = f'SPDXRef-Package-{found["name"]}'
    # The release carries none of them: any version that the build accepts is linked with.
    packages.append(package(identifier, found['name'], found['version'], licence))
    relations.append({'spdxElementId': identifier, 'relationshipType': relation, 'relatedSpdxElement': root})
if unknown:
    sys.exit(f'packaging/sbom.py does not know the licence of {", ".join(unknown)}: add it to KNOWN')
document = {
    'spdxVersion': 'SPDX-2.3', 'dataLicense': 'CC0-1.0', 'SPDXID': 'SPDXRef-DOCUMENT', 'name': f'{name}-{version}',
    'documentNamespace': f'https://spdx.org/spdxdocs/{name}-{version}-{digest}',
    'creationInfo': {'created': created.strftime('%Y-%m-%dT%H:%M:%SZ'), 'creators': [f'Tool: {name}-sbom.py']},
    'packages': packages, 'relationships': relations,
}
out.write_text(json.dumps(document, indent=2) + '\n')
