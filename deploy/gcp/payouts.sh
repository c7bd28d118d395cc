#!/usr/bin/env bash
# Payouts on Google Cloud: prints the commands, in their order; with --apply it runs them.
#
#   export PROJECT=shop-1 IMAGE=… INSTANCE=books HOST_WALLET_ADDRESS=0x…
#   deploy/gcp/payouts.sh                            every step, printed
#   deploy/gcp/payouts.sh --apply queues services    these two, run
#   TASKS_VERIFIED_BY=payonce deploy/gcp/payouts.sh   without Cloud Run's own check of tasks
#
# Steps: apis accounts database secrets queues migrate services access
# Every step may be run again. What they do and how to go back: docs/running-payouts-on-google-cloud.md
set -euo pipefail

STEPS="apis accounts database secrets queues migrate services access"

REGION="${REGION:-us-central1}"
DB_NAME="${DB_NAME:-payouts}"
# The login of the services, and the one that owns the tables, which only the migration job has. A database that an
# earlier version of this script migrated belongs to `payouts`: docs/running-payouts-on-google-cloud.md, A database with
# one login.
DB_USER="${DB_USER:-payouts}"
DB_OWNER="${DB_OWNER:-payouts_owner}"
# From PostgreSQL 16 on the default edition is ENTERPRISE_PLUS, which has no custom tiers.
DB_EDITION="${DB_EDITION:-ENTERPRISE}"
DB_TIER="${DB_TIER:-db-custom-2-7680}"
PAYOUTS_TOKENS_V1="${PAYOUTS_TOKENS_V1:-off}"
PAYOUTS_ALLOW_MISSING_PAYMENT_ID="${PAYOUTS_ALLOW_MISSING_PAYMENT_ID:-false}"
PAYOUTS_WEBHOOK_FORMAT="${PAYOUTS_WEBHOOK_FORMAT:-full}"
# external: your own GCHostPay at HOSTPAY_WEBHOOK_URL pays, instead of a service of ours.
PAYOUTS_HOSTPAY="${PAYOUTS_HOSTPAY:-internal}"
MAX_INSTANCES="${MAX_INSTANCES:-4}"
# Any other settings, separated by bars: PAYONCE_LOG_EMOJI=true|CHANGENOW_REQUESTS_PER_S=10
MORE_SETTINGS="${MORE_SETTINGS:-}"
# Who verifies the token of a task at the services that only tasks call: cloud-run (its IAM check, which then removes the
# token's signature), or payonce (the service is open to the network and verifies every token itself).
TASKS_VERIFIED_BY="${TASKS_VERIFIED_BY:-cloud-run}"

# No handler waits in a loop: a call to a vendor takes at most 20 s, and a run is ended after 115 s.
TIMEOUT_S=120
PORT=8080
# Cloud Run kills a container 10 s after SIGTERM. Runs cancelled before that do not count as crashes.
GRACE_S=5
POOL_SIZE=4
# A process has 2 × POOL_SIZE + 10 database sessions; while revisions are replaced there are twice as many processes, and
# the migration job is another one.
SESSIONS=$(((2 * (3 * MAX_INSTANCES + 1) + 1) * (2 * POOL_SIZE + 10)))
# Requests reach a container through Cloud Run's proxy, which has a link-local address.
PROXIES=169.254.0.0/16

QUEUES="
gcsplit-usdt-eth-estimate-queue
gcsplit-usdt-eth-response-queue
gcsplit-eth-client-swap-queue
gcsplit-eth-client-response-queue
gcsplit-hostpay-trigger-queue
"
# Initial values. After measurements, `payonce queues tune` sets 80 % of ChangeNOW's rate, and the concurrency for its p95.
DISPATCHES_PER_SECOND=10
CONCURRENT_DISPATCHES=50

# service, role, CPU, memory, minimum and maximum instances, who may call it
# Orchestrator and hostpay always have one instance: the queues payouts-keeping and payouts-hostpay-follow are not pushed,
# so no request would wake them, and without any instance no task is handed over. One wallet has one writer: one hostpay.
SERVICES="
gcsplit1-10-26  payouts.orchestrator 2 1Gi   1 $MAX_INSTANCES everybody
gcsplit2-10-26  payouts.estimator    1 512Mi 0 $MAX_INSTANCES tasks
gcsplit3-10-26  payouts.swapper      1 512Mi 0 $MAX_INSTANCES tasks
$([ "$PAYOUTS_HOSTPAY" = external ] || echo "gchostpay-10-26 payouts.hostpay      1 512Mi 1 1 tasks")
"

# For the migration job only.
OWNER_SECRET=DB_OWNER_PASSWORD
SECRETS="SUCCESS_URL_SIGNING_KEY TPS_HOSTPAY_SIGNING_KEY TP_FLAT_FEE CHANGENOW_API_KEY DB_PASSWORD PAYONCE_KEYS"

APPLY=no

main() {
  local chosen=()
  while [ $# -gt 0 ]; do
    case "$1" in
      --apply) APPLY=yes ;;
      -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
      -*) refuse "there is no option $1; there is --apply" ;;
      *)
        case " $STEPS " in
          *" $1 "*) chosen+=("$1") ;;
          *) refuse "there is no step $1; the steps are: $STEPS" ;;
        esac
        ;;
    esac
    shift
  done
  [ -n "${PROJECT:-}" ] || refuse "PROJECT is not set; it must be the id of your Google Cloud project"
  [ -n "${IMAGE:-}" ] || refuse "IMAGE is not set; it must name the image built from deploy/Dockerfile in your registry"
  [ -n "${INSTANCE:-}" ] || refuse "INSTANCE is not set; it must name your Cloud SQL instance"
  [ -n "${HOST_WALLET_ADDRESS:-}" ] ||
    refuse "HOST_WALLET_ADDRESS is not set; it must be the address of the wallet that pays, for refunds"
  case "$TASKS_VERIFIED_BY" in
    cloud-run | payonce) ;;
    *) refuse "TASKS_VERIFIED_BY is $TASKS_VERIFIED_BY; it must be cloud-run or payonce" ;;
  esac
  case "$MORE_SETTINGS" in
    *PAYONCE_ACCEPT_OWNER=true*) ;;
    *)
      [ "$DB_OWNER" != "$DB_USER" ] || refuse "DB_OWNER and DB_USER are both $DB_USER; services refuse to start with the \
login that owns the tables: name two logins, or add PAYONCE_ACCEPT_OWNER=true to MORE_SETTINGS"
      ;;
  esac
  if [ "$PAYOUTS_HOSTPAY" = external ] && [ -z "${HOSTPAY_WEBHOOK_URL:-}" ]; then
    refuse "PAYOUTS_HOSTPAY is external and HOSTPAY_WEBHOOK_URL is not set; it must be where your GCHostPay takes its tasks"
  fi
  if [ "$APPLY" = yes ]; then
    PROJECT_NUMBER="${PROJECT_NUMBER:-$(gcloud projects describe "$PROJECT" --format='value(projectNumber)')}"
  else
    PROJECT_NUMBER="${PROJECT_NUMBER:-PROJECT_NUMBER}"
  fi
  RUNNER="payouts-run@$PROJECT.iam.gserviceaccount.com"
  MIGRATOR="payouts-migrate@$PROJECT.iam.gserviceaccount.com"
  CALLER="payouts-tasks@$PROJECT.iam.gserviceaccount.com"
  local step
  # shellcheck disable=SC2086
  for step in ${chosen[@]:-$STEPS}; do
    printf '# %s\n' "$step"
    "step_$step"
  done
}

step_apis() {
  run gcloud services enable run.googleapis.com cloudtasks.googleapis.com secretmanager.googleapis.com \
    sqladmin.googleapis.com iam.googleapis.com cloudresourcemanager.googleapis.com --project="$PROJECT"
}

# One account for the roles, one for the migration job, which alone reads the owner's password, and one for the delivery
# of tasks, which can call a role and do nothing else.
step_accounts() {
  local account role
  for account in payouts-run payouts-migrate payouts-tasks; do
    unless_there gcloud iam service-accounts describe "$account@$PROJECT.iam.gserviceaccount.com" --project="$PROJECT" \
      -- gcloud iam service-accounts create "$account" --project="$PROJECT"
  done
  # To create, look up and delete tasks; to pause, resume and synchronise queues with the policies.
  for role in roles/cloudtasks.enqueuer roles/cloudtasks.taskDeleter roles/cloudtasks.viewer roles/cloudtasks.queueAdmin \
    roles/cloudsql.client; do
    run gcloud projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$RUNNER" --role="$role" \
      --condition=None
  done
  run gcloud projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$MIGRATOR" \
    --role=roles/cloudsql.client --condition=None
  run gcloud iam service-accounts add-iam-policy-binding "$CALLER" --member="serviceAccount:$RUNNER" \
    --role=roles/iam.serviceAccountUser --project="$PROJECT"
}

step_database() {
  unless_there gcloud sql instances describe "$INSTANCE" --project="$PROJECT" \
    -- gcloud sql instances create "$INSTANCE" --database-version=POSTGRES_16 --edition="$DB_EDITION" --tier="$DB_TIER" \
    --region="$REGION" --availability-type=REGIONAL --enable-point-in-time-recovery \
    --database-flags="max_connections=$SESSIONS" --project="$PROJECT"
  unless_there gcloud sql databases describe "$DB_NAME" --instance="$INSTANCE" --project="$PROJECT" \
    -- gcloud sql databases create "$DB_NAME" --instance="$INSTANCE" --project="$PROJECT"
}

# Secrets without values: a value never appears in a command line. Each is filled with
#   printf %s VALUE | gcloud secrets versions add NAME --data-file=- --project=PROJECT
step_secrets() {
  local name
  for name in $SECRETS "$OWNER_SECRET"; do
    unless_there gcloud secrets describe "$name" --project="$PROJECT" \
      -- gcloud secrets create "$name" --replication-policy=automatic --project="$PROJECT"
  done
  for name in $SECRETS; do
    may_read "$RUNNER" "$name" "$PROJECT"
  done
  may_read "$MIGRATOR" "$OWNER_SECRET" "$PROJECT"
  # A HOSTPAY_WEBHOOK_URL in Secret Manager exists already.
  case "${HOSTPAY_WEBHOOK_URL:-}" in
    projects/*/secrets/*/versions/*)
      local project="${HOSTPAY_WEBHOOK_URL#projects/}" secret="${HOSTPAY_WEBHOOK_URL#projects/*/secrets/}"
      may_read "$RUNNER" "${secret%%/*}" "${project%%/*}"
      ;;
  esac
}

# may_read ACCOUNT SECRET PROJECT
may_read() {
  run gcloud secrets add-iam-policy-binding "$2" --member="serviceAccount:$1" \
    --role=roles/secretmanager.secretAccessor --project="$3"
}

# Creates missing queues only: a tuned queue is not changed. `payonce queues sync --to cloudtasks` synchronises all of them
# with the policies.
step_queues() {
  local queue
  local flags=(
    "--max-dispatches-per-second=$DISPATCHES_PER_SECOND"
    "--max-concurrent-dispatches=$CONCURRENT_DISPATCHES"
    --max-attempts=-1
    --max-retry-duration=86400s
    --min-backoff=60s
    --max-backoff=60s
    --max-doublings=0
    "--location=$REGION"
    "--project=$PROJECT"
  )
  for queue in $QUEUES; do
    unless_there gcloud tasks queues describe "$queue" --location="$REGION" --project="$PROJECT" \
      -- gcloud tasks queues create "$queue" "${flags[@]}"
  done
}

# Before each new version; the services refuse a database that lacks a migration. Cloud Run may report a successful try as
# failed, so retries are needed; a repeated migration changes nothing. The job has access to the database and its owner's
# password only.
step_migrate() {
  local owner="INSTANCE_CONNECTION_NAME=$(instance)|DB_NAME=$DB_NAME|DB_USER=$DB_OWNER"
  owner+="|DB_PASSWORD=$(latest "$OWNER_SECRET")"
  run gcloud run jobs deploy payouts-migrate --image="$IMAGE" --args=db,migrate --region="$REGION" \
    --service-account="$MIGRATOR" --set-cloudsql-instances="$(instance)" --set-env-vars="^|^$owner" \
    --task-timeout=30m --max-retries=3 --project="$PROJECT"
  run gcloud run jobs execute payouts-migrate --region="$REGION" --wait --project="$PROJECT"
}

step_services() {
  local service role cpu memory least most who open ingress verified_by
  while read -r service role cpu memory least most who; do
    [ -n "$service" ] || continue
    verified_by="$TASKS_VERIFIED_BY"
    # The webhook comes from outside Google and is authenticated by its signature, tasks by their OIDC token.
    [ "$who" = everybody ] && verified_by=payonce
    # Never one without the other: an open service that trusts Cloud Run's check would accept unverified tokens.
    # Tasks of this project count as internal: no other caller reaches a closed service, whatever its IAM policy says.
    open=--no-allow-unauthenticated ingress=internal
    [ "$verified_by" = payonce ] && open=--allow-unauthenticated ingress=all
    # Outside of requests the roles hand over tasks and run janitors, for which they need the CPU.
    run gcloud run deploy "$service" --image="$IMAGE" --args="run,$role,--port,$PORT" --port="$PORT" \
      --region="$REGION" "$open" --ingress="$ingress" --cpu="$cpu" --memory="$memory" --timeout="${TIMEOUT_S}s" \
      --no-cpu-throttling \
      --min-instances="$least" --max-instances="$most" --service-account="$RUNNER" \
      --set-cloudsql-instances="$(instance)" \
      --set-env-vars="$(variables)|CLOUD_TASKS_VERIFIED_BY=$verified_by" --project="$PROJECT" </dev/null
  done <<<"$SERVICES"
}

step_access() {
  local service who
  # Where payonce verifies the tokens itself, everybody may call.
  [ "$TASKS_VERIFIED_BY" = cloud-run ] || return 0
  while read -r service _ _ _ _ _ who; do
    [ "$who" = tasks ] || continue
    run gcloud run services add-iam-policy-binding "$service" --member="serviceAccount:$CALLER" \
      --role=roles/run.invoker --region="$REGION" --project="$PROJECT" </dev/null
  done <<<"$SERVICES"
}

# Every role gets the same settings: each of them may hand over tasks, and so must reach and sign for all.
variables() {
  local name all=(
    "CLOUD_TASKS_PROJECT_ID=$PROJECT"
    "CLOUD_TASKS_LOCATION=$REGION"
    "CLOUD_TASKS_SERVICE_ACCOUNT=$CALLER"
    "GCSPLIT1_URL=$(address gcsplit1-10-26)"
    "GCSPLIT2_URL=$(address gcsplit2-10-26)"
    "GCSPLIT3_URL=$(address gcsplit3-10-26)"
    "HOSTPAY_WEBHOOK_URL=${HOSTPAY_WEBHOOK_URL:-$(address gchostpay-10-26)}"
    "GCSPLIT2_QUEUE=gcsplit-usdt-eth-estimate-queue"
    "GCSPLIT3_QUEUE=gcsplit-eth-client-swap-queue"
    "HOSTPAY_QUEUE=gcsplit-hostpay-trigger-queue"
    "ESTIMATOR__GCSPLIT1_RESPONSE_QUEUE=gcsplit-usdt-eth-response-queue"
    "SWAPPER__GCSPLIT1_RESPONSE_QUEUE=gcsplit-eth-client-response-queue"
    "INSTANCE_CONNECTION_NAME=$(instance)"
    "DB_NAME=$DB_NAME"
    "DB_USER=$DB_USER"
    "HOST_WALLET_ADDRESS=$HOST_WALLET_ADDRESS"
    "PAYOUTS_TOKENS_V1=$PAYOUTS_TOKENS_V1"
    "PAYOUTS_ALLOW_MISSING_PAYMENT_ID=$PAYOUTS_ALLOW_MISSING_PAYMENT_ID"
    "PAYOUTS_WEBHOOK_FORMAT=$PAYOUTS_WEBHOOK_FORMAT"
    "PAYOUTS_HOSTPAY=$PAYOUTS_HOSTPAY"
    "PAYONCE_GRACE_S=$GRACE_S"
    "PAYONCE_POOL_SIZE=$POOL_SIZE"
    "PAYONCE_TRUSTED_PROXIES=$PROXIES"
  )
  for name in $SECRETS; do
    all+=("$name=$(latest "$name")")
  done
  [ -z "$MORE_SETTINGS" ] || all+=("$MORE_SETTINGS")
  local IFS='|'
  # gcloud's syntax for another separator: no value contains a bar.
  printf '^|^%s' "${all[*]}"
}

# The address that Cloud Run gives a service, known before its first deployment, so that each service can be given the
# addresses of the others.
address() { printf 'https://%s-%s.%s.run.app' "$1" "$PROJECT_NUMBER" "$REGION"; }

latest() { printf 'projects/%s/secrets/%s/versions/latest' "$PROJECT" "$1"; }

instance() { printf '%s:%s:%s' "$PROJECT" "$REGION" "$INSTANCE"; }

run() {
  printf '%q ' "$@"
  printf '\n'
  [ "$APPLY" = no ] || "$@"
}

# unless_there CHECK… -- CREATE…: creates what the check does not find.
unless_there() {
  local check=()
  while [ "$1" != -- ]; do
    check+=("$1")
    shift
  done
  shift
  if [ "$APPLY" = yes ] && "${check[@]}" >/dev/null 2>&1; then
    return
  fi
  run "$@"
}

refuse() {
  printf '%s\n' "$1" >&2
  exit 2
}

main "$@"
